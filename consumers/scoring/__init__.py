"""Scores the records of a topic with released models. **Not private.**"""

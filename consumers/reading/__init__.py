"""Reads what is planned, message by message, here or in the tasks of an engine."""

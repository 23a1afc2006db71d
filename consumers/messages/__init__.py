"""Decoding of messages: formats, schemas, and what a sample of them shows."""

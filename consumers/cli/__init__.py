"""The command `stream-dppca`."""

from .entry import main

__all__ = ["main"]

"""The command `stream-dppca`."""

from .commands import main

__all__ = ["main"]

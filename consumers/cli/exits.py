"""Exit codes of the commands, and the line on standard error that explains one."""

from __future__ import annotations

import signal
import sys
from typing import Final

EXIT_USAGE: Final = 2
EXIT_REFUSED: Final = 65
EXIT_CONFIGURATION: Final = 78
EXIT_INTERRUPTED: Final = 128 + signal.SIGINT
EXIT_UNREAD: Final = 128 + signal.SIGPIPE


def exit_code(error: Exception) -> int:
    """Return the exit code of a process that ends with an error."""
    from stream_dppca import DPPCAError

    from ..errors import ConfigurationError, StateRefused

    if isinstance(error, StateRefused):
        return EXIT_REFUSED
    return EXIT_CONFIGURATION if isinstance(error, ConfigurationError | DPPCAError) else 1


def fail(text: str, code: int) -> int:
    """Write a text to standard error, and return the exit code."""
    sys.stderr.write(text.rstrip() + "\n")
    return code

"""The command `stream-dppca`: finds the command to run, and turns errors into exit codes.

Nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import difflib
import json
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import Final

from . import exits, parsing
from .commands import COMMANDS
from .exits import EXIT_USAGE, exit_code, fail

DESCRIPTION: Final = """\
Differentially private PCA of a Kafka topic: records go in, private components come out.

A first model on an existing cluster:

  export DPPCA_BOOTSTRAP_SERVERS=kafka:9092 DPPCA_INPUT_TOPIC=telemetry
  export DPPCA_FEATURES=cpu,memory,disk.read DPPCA_EPSILON=1 DPPCA_DELTA=1e-6
  export DPPCA_BATCH_SIZE=10000
  stream-dppca plan              # what to expect, before any data is touched
  stream-dppca check-config --sample 20   # do settings, topics and messages fit together?
  stream-dppca serve             # learn; a second process is a hot standby
  stream-dppca inspect           # the current component, labelled and sorted
  stream-dppca watch             # the same as it changes; --web for a page in a browser

Every setting is a flag (--batch-size), a variable (DPPCA_BATCH_SIZE) or a line of a TOML file
(batch_size = 10000); flags win over variables, variables over the file. See `serve --help`.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    command, *rest = (sys.argv[1:] if arguments is None else arguments) or ("",)
    if command in ("", "-h", "--help"):
        (sys.stdout if command else sys.stderr).write(_help())
        return 0 if command else EXIT_USAGE
    if command == "--version":
        from importlib.metadata import version

        sys.stdout.write(f"stream-dppca {version('stream-dppca')}\n")
        return 0
    if command not in COMMANDS:
        meant = difflib.get_close_matches(command, COMMANDS, n=1)
        hint = f"did you mean {meant[0]}?" if meant else "see --help"
        return fail(f"{command!r} is not a command; {hint}", EXIT_USAGE)
    if command == "serve":
        # The imports take seconds. Until they are done nothing has begun: leave at once.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: os._exit(0))
    return _guarded(command, rest)


def _help() -> str:
    commands = "\n".join(f"  {name:13} {run.__doc__}" for name, run in COMMANDS.items())
    return (
        f"usage: stream-dppca command [options]; see `<command> --help`\n\n{DESCRIPTION}\n"
        f"commands:\n{commands}\n  --version     print the version\n"
    )


def _guarded(command: str, arguments: Sequence[str]) -> int:
    """Run a command; explain an error in one line."""
    # Commands print these warnings themselves, in one line each. The category is not imported,
    # because that takes seconds.
    warnings.filterwarnings("ignore", r"(epsilon|delta) = \d", UserWarning)
    try:
        run = COMMANDS[command]
        code = run(*parsing.parse(command, run.__doc__ or "", arguments))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as stopped:
        return fail(str(stopped) or "stopped", exits.EXIT_INTERRUPTED)
    except BrokenPipeError:
        # Nobody reads the output any more. Python would flush it once more at exit, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.EXIT_UNREAD
    except ModuleNotFoundError as error:
        extra = "cli" if command == "run" or error.name == "rich" else "service"
        text = f"this command needs {error.name}: pip install 'stream-dppca[{extra}]'"
        return fail(text, exits.EXIT_CONFIGURATION)
    except Exception as error:
        from ..events import describe_error

        described = describe_error(error)
        # The text of an unexpected error may quote a record, so only its type and place are shown.
        text = described.get("message") or json.dumps({"event": "crashed", **described})
        return fail(text, exit_code(error))

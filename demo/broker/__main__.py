"""`python -m demo.broker`: starts a broker, or fetches what it needs."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from typing import Final

from .base import BrokerError
from .jars import ensure_jars
from .local import ON_DEMAND, LocalBroker
from .node import create_topic

#: Time between two looks at whether the broker still runs.
LOOK_SECONDS: Final = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m demo.broker", description="Start a Kafka broker for experiments."
    )
    about = "run, the default: until Ctrl-C; jars: fetch what it needs, and print the folder"
    parser.add_argument("command", nargs="?", choices=("run", "jars"), default="run", help=about)
    parser.add_argument("--port", type=int, help="port to serve at; default: a free one")
    parser.add_argument("--topic", help="topic to create, of one partition")
    options = parser.parse_args(arguments)
    try:
        if options.command == "jars":
            _print(str(ensure_jars(_tell)))
        else:
            _serve(options.port, options.topic)
    except KeyboardInterrupt:
        pass
    except BrokerError as error:
        _tell(str(error))
        return 1
    return 0


def _serve(port: int | None, topic: str | None) -> None:
    """Keep a broker running until a signal ends it."""
    for ending in (signal.SIGINT, signal.SIGTERM):  # a shell's background job ignores the first
        signal.signal(ending, signal.default_int_handler)
    with LocalBroker(port=port, settings=ON_DEMAND, tell=_tell) as broker:
        if topic is not None:
            create_topic(broker.port, topic)
        _print(broker.bootstrap_servers)
        while broker.running:
            time.sleep(LOOK_SECONDS)
        raise BrokerError(f"the broker has ended{broker.log_tail()}")


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())

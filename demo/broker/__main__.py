"""`python -m demo.broker`: starts a broker, or prepares what it needs."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from collections.abc import Sequence
from typing import Final

from .base import LOCAL_IMAGE, BrokerError, Progress
from .jars import ensure_jars
from .managed import ManagedBroker
from .provide import KINDS, provide_broker

#: Time between two looks at whether the broker still runs.
LOOK_SECONDS: Final = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m demo.broker", description="Start a Kafka broker for experiments."
    )
    commands = parser.add_subparsers(dest="command")
    run = commands.add_parser("run", help="start a broker, print its address, stop it on Ctrl-C")
    run.add_argument("--kind", choices=KINDS, help="kind; default: the first that works")
    run.add_argument("--port", type=int, help="port to serve at (docker or local)")
    commands.add_parser("jars", help="fetch Kafka's jars if they are not cached; print the folder")
    commands.add_parser("image", help="print the name of the image of docker/kafka-local")
    options = parser.parse_args(arguments)

    def tell(line: str) -> None:
        sys.stderr.write(line + "\n")

    def answer(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    try:
        if options.command == "image":
            answer(LOCAL_IMAGE)
        elif options.command == "jars":
            answer(str(ensure_jars(tell)))
        else:
            kind, port = getattr(options, "kind", None), getattr(options, "port", None)
            _serve(kind, port, tell, answer)
    except BrokerError as error:
        tell(str(error))
        return 1
    return 0


def _serve(kind: str | None, port: int | None, tell: Progress, answer: Progress) -> None:
    """Keep a broker running until a signal ends it."""
    for ending in (signal.SIGINT, signal.SIGTERM):  # a shell's background job ignores the first
        signal.signal(ending, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), provide_broker(tell, kind, port) as broker:
        answer(broker.bootstrap_servers)
        while not isinstance(broker, ManagedBroker) or broker.running:
            time.sleep(LOOK_SECONDS)
        raise BrokerError(f"the broker has ended{broker.log_tail()}")


if __name__ == "__main__":
    sys.exit(main())

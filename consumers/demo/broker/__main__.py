"""`python -m consumers.demo.broker`"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import threading
from collections.abc import Sequence

from .common import LOCAL_IMAGE, BrokerError, Progress
from .jars import ensure_jars
from .ways import WAYS, Broker, DockerBroker, ExternalBroker, LocalBroker, provide_broker


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m consumers.demo.broker", description="A Kafka broker."
    )
    commands = parser.add_subparsers(dest="command")
    run = commands.add_parser("run", help="start a broker, say its address, stop it on Ctrl-C")
    run.add_argument("--way", choices=sorted(WAYS), help="this way and no other")
    run.add_argument("--port", type=int, help="where to serve (docker, or else local)")
    commands.add_parser("jars", help="fetch Kafka's jars if they are not here; say where they are")
    commands.add_parser("image", help="the name of the image of docker/kafka-local")
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
            way, port = getattr(options, "way", None), getattr(options, "port", None)
            _serve(way, port, tell, answer)
    except BrokerError as error:
        tell(str(error))
        return 1
    return 0


def _serve(way: str | None, port: int | None, tell: Progress, answer: Progress) -> None:
    """Have a broker until a signal says stop."""
    for ending in (signal.SIGINT, signal.SIGTERM):  # a shell's background job ignores the first
        signal.signal(ending, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        broker: Broker
        if way == "docker":
            broker = DockerBroker(port=port, progress=tell)
        elif way == "local" or port:
            broker = LocalBroker(port=port, progress=tell)
        elif way == "env":
            broker = ExternalBroker()
        else:
            broker = provide_broker(tell)
        with broker:
            answer(broker.bootstrap_servers)
            threading.Event().wait()


if __name__ == "__main__":
    sys.exit(main())

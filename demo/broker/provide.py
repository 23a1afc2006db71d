"""Chooses the first kind of broker that works on this machine."""

from __future__ import annotations

import os
from typing import Final

from . import base
from .base import Broker, BrokerError, BrokerUnavailable, ExternalBroker, Progress
from .docker import DockerBroker
from .local import LocalBroker
from .managed import ManagedBroker

STARTED: Final[dict[str, type[ManagedBroker]]] = {"docker": DockerBroker, "local": LocalBroker}
KINDS: Final = (ExternalBroker.kind, *STARTED)
#: For experiments: without it, a producer waits for a minute for a topic that nobody has created.
ON_DEMAND: Final = {"auto.create.topics.enable": "true"}


def provide_broker(
    progress: Progress | None = None, kind: str | None = None, port: int | None = None
) -> Broker:
    """Start a broker that creates topics on demand; the caller closes it.

    It is of the given kind, or of the first that works here. An address in
    `KAFKA_BOOTSTRAP_SERVERS` is binding: if nothing answers there, nothing else is tried.

    Raises
    ------
    BrokerUnavailable
        If no kind works; the message gives the reason for each kind.
    """
    free = kind is None and port is None
    if kind == "env" or (free and os.environ.get(base.ADDRESS_VARIABLE)):
        external = ExternalBroker()
        external.start()
        return external
    reasons = [f"env: {base.ADDRESS_VARIABLE} is not set"] if free else []
    for name in STARTED if kind is None else (kind,):
        broker = STARTED[name](port=port, settings=ON_DEMAND, progress=progress)
        try:
            broker.start()
        except BrokerError as error:
            reasons.append(f"{broker.kind}: {error}")
        else:
            return broker
    raise BrokerUnavailable(
        "no Kafka broker is available on this machine:\n  " + "\n  ".join(reasons)
    )

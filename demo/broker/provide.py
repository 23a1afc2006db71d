"""Chooses the first kind of broker that works on this machine."""

from __future__ import annotations

import os

from .base import Broker, ExternalBroker
from .common import ADDRESS_VARIABLE, BrokerError, BrokerUnavailable, Progress
from .docker import DockerBroker
from .local import LocalBroker

KINDS: dict[str, type[Broker]] = {
    cls.kind: cls for cls in (ExternalBroker, DockerBroker, LocalBroker)
}


def provide_broker(progress: Progress | None = None) -> Broker:
    """Start the first kind of broker that works here; the caller closes it.

    An address in `KAFKA_BOOTSTRAP_SERVERS` is binding: if nothing answers there, nothing else is
    tried.

    Raises
    ------
    BrokerUnavailable
        If no kind works; the message gives the reason for each kind.
    """
    if os.environ.get(ADDRESS_VARIABLE):
        external = ExternalBroker()
        external.start()
        return external
    reasons = [f"env: {ADDRESS_VARIABLE} is not set"]
    for broker in (DockerBroker(progress=progress), LocalBroker(progress=progress)):
        try:
            broker.start()
        except BrokerError as error:
            reasons.append(f"{broker.kind}: {error}")
        else:
            return broker
    raise BrokerUnavailable(
        "no Kafka broker is available on this machine:\n  " + "\n  ".join(reasons)
    )

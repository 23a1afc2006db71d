"""Connects a command to the brokers."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ..protocols import Cluster
    from ..settings import ClusterSettings, ViewSettings

    Brokers = ClusterSettings | ViewSettings

#: Longest wait of a command that asks the brokers once, unless request_timeout_s is set.
PATIENCE_SECONDS: Final = 5.0


def connect(settings: Brokers) -> Cluster:
    """Return the cluster of these settings; warnings of its client go to standard error."""
    from ..events import set_up_logs
    from ..kafka.cluster import KafkaCluster
    from ..kafka.configure import kafka_config

    set_up_logs(sys.stderr)
    return KafkaCluster(kafka_config(settings))


@contextlib.contextmanager
def ask_once(settings: Brokers) -> Iterator[Cluster]:
    """Yield the cluster to a command that does not wait for brokers.

    If no broker answers within a few seconds, the error gives the reason in one line.
    """
    from ..errors import Unavailable
    from ..events import ConnectionFailures

    if "request_timeout_s" not in settings.model_fields_set:
        settings = settings.model_copy(update={"request_timeout_s": PATIENCE_SECONDS})
    cluster = connect(settings)
    failures = ConnectionFailures()
    try:
        yield cluster
    except Unavailable as error:
        if "Unable to bootstrap" not in str(error):
            raise
        why = failures.reason or f"within {settings.request_timeout_s:g} s"
        raise Unavailable(
            f"bootstrap_servers {settings.bootstrap_servers}: no broker answers ({why})"
        ) from None

"""Names and errors that the modules of brokers share."""

from __future__ import annotations

from collections.abc import Callable

KAFKA_VERSION = "4.3.1"  # of the jars and of both images
LOOPBACK = "127.0.0.1"
HEAP = "-Xmx512m"
START_SECONDS = 300.0  #: a start takes seconds on an idle machine, minutes on a busy one

Progress = Callable[[str], None]


class BrokerError(RuntimeError):
    """Base class of all errors about brokers."""


class BrokerUnavailable(BrokerError):
    """This machine cannot have a broker; the message says what is missing."""


class BrokerFailed(BrokerError):
    """A broker did not start, or died; the message ends with the end of its log."""

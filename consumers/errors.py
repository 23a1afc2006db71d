"""Every error the service raises on purpose.

    ServiceError
    ├── ConfigurationError     a setting or a topic is not as it must be; says what to change
    ├── StateRefused           the stored state cannot be gone on from; says why
    └── ClusterError (retriable)   the log did not do what was asked; drop everything and load again
        ├── Fenced             somebody else owns the task now
        ├── OutcomeUnknown     a transaction may or may not have been committed
        ├── OffsetsGone        the offsets to read at are not in the log (any more)
        └── Unavailable        no answer in time

Texts name settings, topics, partitions and offsets, never anything of a record.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "ClusterError",
    "ConfigurationError",
    "Fenced",
    "OffsetsGone",
    "OutcomeUnknown",
    "ServiceError",
    "StateRefused",
    "Unavailable",
]


class ServiceError(Exception):
    """Base class of all errors of the service."""

    #: Whether doing the same again, from the last committed state, may work.
    retriable: ClassVar[bool] = False


class ConfigurationError(ServiceError):
    """A setting or a topic is not as it must be."""


class StateRefused(ServiceError):
    """The stored state cannot be gone on from without breaking a promise."""


class ClusterError(ServiceError):
    """The log did not do what was asked."""

    retriable = True


class Fenced(ClusterError):
    """Somebody else owns the task now, or the group has moved on without us."""


class OutcomeUnknown(ClusterError):
    """A transaction may or may not have been committed."""


class OffsetsGone(ClusterError):
    """The log does not hold the offsets at which it was to be read."""


class Unavailable(ClusterError):
    """No answer in time."""

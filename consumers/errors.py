"""The errors that the service raises on purpose.

    ServiceError
    ├── ConfigurationError     a setting or a topic is not as it must be; says what to change
    │   └── SenderTime         a message has a time that its sender has set (`round_reader`)
    ├── StateRefused           the service cannot resume from the stored state; says why
    ├── EngineLost             the engine of this process is gone; another process has a new one
    └── ClusterError           the cluster did not do what was asked; drop everything, load again
        ├── Fenced             somebody else owns the model now
        ├── OutcomeUnknown     a transaction may or may not have been committed
        ├── OffsetsGone        the offsets to read at do not exist (any more)
        ├── PlanOver           the topic is not what the plan took it for (`batch_planner`)
        └── Unavailable        no answer in time
            └── RegistryAway   no answer from the schema registry, which is asked again

Texts name settings, topics, partitions and offsets, never anything of a record. Nothing that is
wrong with a single message is among them: `UnusableSchema` and `MalformedMessage` end in the codec
that raises them (`messages.registered`), which makes a null of such a message.
"""

from __future__ import annotations


class ServiceError(Exception):
    """Base class of all errors of the service."""


class ConfigurationError(ServiceError):
    """A setting or a topic is not as it must be."""


class StateRefused(ServiceError):
    """The service cannot resume from the stored state without breaking a promise."""


class EngineLost(ServiceError):
    """The engine of this process is gone. A new process, with a new engine, resumes."""


class ClusterError(ServiceError):
    """The cluster did not do what was asked. Doing it again, from the last state, may work."""


class Fenced(ClusterError):
    """Somebody else owns the model now, or the group has moved on without us."""


class OutcomeUnknown(ClusterError):
    """A transaction may or may not have been committed."""


class OffsetsGone(ClusterError):
    """The offsets to read from do not exist on the cluster."""


class Unavailable(ClusterError):
    """No answer in time."""


class RegistryAway(Unavailable):
    """The schema registry does not answer at all, or denies access."""

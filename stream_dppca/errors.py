"""Every error this package raises on purpose.

    DPPCAError
    ├── ParameterError (ValueError)   a parameter breaks a rule; names it, the rule and the value
    │   └── BatchSizeError            a batch or round is too small to work; names the smallest
    ├── StateError (ValueError)       a saved state does not fit; names the field
    └── EngineError                   a task of an engine failed (`engine`)
        └── SourceAway                what its source needs does not answer: ask again

Records never raise: a record that cannot be read is a null in its slot.
"""

from __future__ import annotations


class DPPCAError(Exception):
    """Base class of all errors of this package."""


class ParameterError(DPPCAError, ValueError):
    """A parameter breaks a rule.

    Examples
    --------
    >>> raise ParameterError("batch_size", "must be a positive integer", -3)
    Traceback (most recent call last):
    ...
    stream_dppca.errors.ParameterError: `batch_size` must be a positive integer. Found -3.
    """

    def __init__(self, parameter: str, rule: str, value: object, hint: str = "") -> None:
        self.parameter = parameter
        super().__init__(f"`{parameter}` {rule}. Found {value!r}.{' ' + hint if hint else ''}")


class BatchSizeError(ParameterError):
    """The batch or round is too small for any useful release at this privacy level."""

    def __init__(self, value: int, minimum: int, why: str, parameter: str = "batch_size") -> None:
        self.minimum = minimum
        super().__init__(parameter, f"must be at least {minimum}: {why}", value)


class StateError(DPPCAError, ValueError):
    """A saved state cannot be used here."""

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        super().__init__(f"state field `{field}` {problem}")


class LooseBudgetWarning(UserWarning):
    """An epsilon or a delta is allowed, but promises next to nothing."""


class NothingLearnedWarning(UserWarning):
    """Nothing was learned from a batch, or a model was asked for scores before it had learned."""

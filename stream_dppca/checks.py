"""Rules for parameters: each raises a `ParameterError` that names parameter, rule and value."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from .errors import ParameterError

#: An epsilon above this allows odds to change by a factor of more than 22,000.
LOOSE_EPSILON: Final = 10.0


def real(value: Any) -> bool:
    """True for a real number that is not a bool."""
    kinds = int | float | np.integer | np.floating
    return isinstance(value, kinds) and not isinstance(value, bool | np.timedelta64)


def between(name: str, value: Any, low: float, high: float) -> None:
    """Require a number from `low` to `high`.

    Examples
    --------
    >>> between("zeta", 2.0, 0.0, 1.0)
    Traceback (most recent call last):
    ...
    stream_dppca.errors.ParameterError: `zeta` must lie between 0 and 1. Found 2.0.
    """
    if not (real(value) and low <= value <= high):  # false for NaN
        raise ParameterError(name, f"must lie between {low:g} and {high:g}", value)


def positive(name: str, value: Any) -> None:
    """Require a finite number above zero."""
    if not (real(value) and 0 < value < math.inf):
        raise ParameterError(name, "must be finite and positive", value)


def whole(name: str, value: Any, low: int = 1, high: float = math.inf) -> None:
    """Require an integer from `low` to `high`."""
    if not (real(value) and isinstance(value, int | np.integer) and low <= value <= high):
        upper = "" if high == math.inf else f" and at most {high:.15g}"
        raise ParameterError(name, f"must be an integer of at least {low}{upper}", value)


def one_of(name: str, value: Any, allowed: Iterable[str]) -> None:
    """Require one of a few words."""
    words = tuple(allowed)
    if value not in words:
        raise ParameterError(name, f"must be one of {', '.join(words)}", value)


def loose_budget(epsilon: float, delta: float, units: int, name: str = "batch_size") -> list[str]:
    """Return warnings about a budget that is allowed but seldom intended.

    Parameters
    ----------
    units
        Records of a batch, or subjects of a round.
    name
        The parameter that holds their number.

    Examples
    --------
    >>> loose_budget(1.0, 1e-6, 2000)
    []
    >>> loose_budget(50.0, 1e-6, 2000)
    ['epsilon = 50 promises next to nothing; at most 1 is usual, above 10 is not protection']
    """
    found = []
    if epsilon > LOOSE_EPSILON:
        found.append(
            f"epsilon = {epsilon:g} promises next to nothing; at most 1 is usual, above "
            f"{LOOSE_EPSILON:g} is not protection"
        )
    if delta > 1 / units:
        what = "record of every batch" if name == "batch_size" else "subject of every round"
        found.append(
            f"delta = {delta:g} is above 1/{name} = {1 / units:.2g}: "
            f"a mechanism that publishes one {what} would be allowed; "
            f"{min(1e-6, 10.0 ** math.floor(math.log10(0.1 / units))):.0e} is usual"
        )
    return found

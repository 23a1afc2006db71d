"""Rules for parameters name the parameter, the rule and the value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from stream_dppca.checks import between, one_of, positive, whole
from stream_dppca.errors import ParameterError

NOT_NUMBERS: list[Any] = [
    True,
    None,
    "1",
    [1],
    1j,
    math.nan,
    np.bool_(True),
    np.timedelta64(1),
    np.float64("nan"),
]


@pytest.mark.parametrize("value", NOT_NUMBERS, ids=repr)
def test_what_is_not_a_number_breaks_every_rule(value: Any) -> None:
    for rule in (positive, whole, lambda name, x: between(name, x, 0.0, 2.0)):
        with pytest.raises(ParameterError, match=r"`size` must .* Found"):
            rule("size", value)


def test_edges() -> None:
    for good in (0, 1.0, np.float32(0.5), np.int8(1)):
        between("x", good, 0.0, 1.0)
    for bad in (-1e-9, 1.0000001, math.inf):
        with pytest.raises(ParameterError, match="`x` must lie between 0 and 1"):
            between("x", bad, 0.0, 1.0)
    for good in (1e-300, 3, np.float64(2)):
        positive("x", good)
    for bad in (0, -1.0, math.inf):
        with pytest.raises(ParameterError, match="finite and positive"):
            positive("x", bad)
    for good in (2, 4_194_304, np.int64(7)):
        whole("n", good, 2, 2**22)
    for bad in (1, 2**22 + 1, 2.0):
        with pytest.raises(
            ParameterError, match="`n` must be an integer of at least 2 and at most 4194304"
        ):
            whole("n", bad, 2, 2**22)
    with pytest.raises(ParameterError, match=r"at least 1\. Found 0"):
        whole("n", 0)
    one_of("center", "none", ("none", "pairs"))
    with pytest.raises(ParameterError, match=r"must be one of none, pairs\. Found 'mean'"):
        one_of("center", "mean", ("none", "pairs"))

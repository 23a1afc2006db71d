"""The rules of the fuzzer hold for its first messages, and a codec that breaks one is caught."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from consumers.messages import codecs

from . import TARGETS
from .targets import seeds, target


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_messages(name: str) -> None:
    draw, check = random.Random(5), target(name)
    for message in seeds(name):
        check(message)
        for _ in range(20):
            damaged = bytearray(message)
            for _ in range(min(3, len(damaged))):
                damaged[draw.randrange(len(damaged))] = draw.randrange(256)
            check(bytes(damaged))


def _prints(values: Any, rows: Any) -> Any:
    print(values)  # noqa: T201
    return rows


def _logs(values: Any, rows: Any) -> Any:
    logging.getLogger("a codec").warning("a bad message")
    return rows


def _forgets_a_row(values: Any, rows: Any) -> Any:
    return rows[:-1]


def _nulls_all_if_one_is(values: Any, rows: Any) -> Any:
    return np.where(np.isnan(rows).any(), np.nan, rows)


@pytest.mark.parametrize("broken", [_prints, _logs, _forgets_a_row, _nulls_all_if_one_is])
def test_a_broken_codec_is_caught(
    broken: Callable[[Any, Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    check = target("json-array")
    decode = codecs.RowPerMessage.decode
    monkeypatch.setattr(
        codecs.RowPerMessage, "decode", lambda self, values: broken(values, decode(self, values))
    )
    with pytest.raises(AssertionError):
        check(b"[1, 2]")

"""Describes a few raw messages to the operator who is about to learn from them.

The result is about single records: `consumers.cli.check` shows it on a terminal and nowhere else.
No scale, mean or range is computed: settings that were chosen by looking at the data would make the
guarantee depend on it.
"""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from ..formats import Format
from ..protocols import SchemaSource
from .codecs import make_codec

__all__ = ["describe_sample"]

#: Keys that are listed at most.
MOST_KEYS: Final = 40
_ITEM_BYTES: Final = {"float32": 4, "float64": 8}


def describe_sample(
    values: Sequence[bytes | None],
    features: Sequence[str],
    format: Format,
    *,
    nested: bool = True,
    rows_per_message: int = 1,
    max_bytes: int = 1 << 20,
    registry: SchemaSource | None = None,
) -> list[str]:
    """Return lines that say how many messages can be learned from, and what is missing."""
    if not values:
        return ["sample: the topic holds no messages yet"]
    codec = make_codec(format, features, max_bytes, nested, rows_per_message, registry)
    rows = codec.decode(values).reshape(len(values), -1, len(features))
    good = np.isfinite(rows).all(axis=(1, 2))
    if format in _ITEM_BYTES:  # of a longer message the rows beyond the number are ignored
        size = rows_per_message * len(features) * _ITEM_BYTES[format]
        good &= np.array([len(value or b"") == size for value in values])
    whole = int(good.sum())
    lines = [f"sample: {whole} of {len(values)} messages have all features"]
    if whole == len(values):
        return lines
    if format in _ITEM_BYTES:
        return lines + _lengths(values, len(features), rows_per_message, _ITEM_BYTES[format])
    if format == "json":
        return lines + _names(values, features, nested)
    if format == "json-array":
        return lines + _counts(values, len(features))
    return lines


def _lengths(
    values: Sequence[bytes | None], width: int, rows_per_message: int, item: int
) -> list[str]:
    """Packed messages whose length is not that of the rows they should hold."""
    wanted = width * rows_per_message * item
    found = Counter(len(value or b"") for value in values)
    lines = [
        f"  a message must have {wanted} bytes: {rows_per_message} rows of {width} features of "
        f"{item} bytes"
    ]
    for length, count in found.most_common(5):
        if length == wanted:
            continue
        if length and not length % (rows_per_message * item):
            hint = f"{rows_per_message} rows of {length // (rows_per_message * item)} features?"
        elif length and not length % (width * item):
            hint = f"{length // (width * item)} rows of {width} features?"
        else:
            hint = "no whole number of rows"
        lines.append(f"  {count} of {len(values)} have {length} bytes: {hint}")
    return lines


def _counts(values: Sequence[bytes | None], width: int) -> list[str]:
    found: Counter[str] = Counter()
    for value in values:
        parsed = _parsed(value)
        found[f"{len(parsed)} values" if isinstance(parsed, list) else "no JSON array"] += 1
    return [f"  {count} of {len(values)} are {what}, not {width} values" if "values" in what
            else f"  {count} of {len(values)} are {what}"
            for what, count in found.most_common(5) if what != f"{width} values"]  # fmt: skip


def _names(values: Sequence[bytes | None], features: Sequence[str], nested: bool) -> list[str]:
    """Missing features, with the key that was probably meant, and the keys that there are."""
    objects = [parsed for value in values if isinstance(parsed := _parsed(value), dict)]
    lines = []
    if len(objects) < len(values):
        lines.append(f"  {len(values) - len(objects)} of {len(values)} are no JSON objects")
    leaves = [dict(_leaves(parsed, nested)) for parsed in objects]
    keys = Counter(key for found in leaves for key in found)
    for name in features:
        holders = [found[name] for found in leaves if name in found]
        numbers = sum(isinstance(v, int | float) and not isinstance(v, bool) for v in holders)
        if numbers == len(objects):
            continue
        line = f"  {name}: in {len(holders)} of {len(objects)} messages"
        if len(holders) > numbers:
            line += f", and not a number in {len(holders) - numbers} of them"
        close = difflib.get_close_matches(name, set(keys) - set(features), n=1, cutoff=0.6)
        lines.append(line + (f"; did you mean {close[0]}?" if not holders and close else ""))
    if lines and keys:
        shown = [key for key, _ in keys.most_common(MOST_KEYS)]
        more = f" and {len(keys) - MOST_KEYS} more" if len(keys) > MOST_KEYS else ""
        lines.append(f"  keys in the messages: {', '.join(shown)}{more}")
    return lines


def _parsed(value: bytes | None) -> Any:
    try:
        return json.loads(value or b"")
    except (ValueError, RecursionError):
        return None


def _leaves(value: dict[str, Any], nested: bool, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Members by their dotted names."""
    for key, member in value.items():
        if nested and isinstance(member, dict) and prefix.count(".") < 8:
            yield from _leaves(member, nested, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", member

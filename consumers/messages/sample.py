"""Describes a few raw messages to the operator who is about to learn from them.

The result is about single records: `consumers.cli.check` shows it on a terminal and nowhere else.
No scale, mean or range is computed: settings that were chosen by looking at the data would make the
guarantee depend on the data.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from stream_dppca.subjects.ids import canonical_all

from ..formats import ARRAY_FORMATS, PACKED_FORMATS
from ..protocols import SchemaSource
from .codecs import Values
from .gathered import Gathering, GroupedMessages, Grouping
from .recipe import MessageRecipe
from .series import parse_feature
from .shapes import Shape, parsed_json, recognise, schema_number, shown_series

#: Most names that are listed.
MOST_LISTED: Final = 40
#: Dots in the longest name that is suggested for a feature.
DEEPEST_NAME: Final = 8


@dataclass(frozen=True)
class Described:
    """The description of a sample."""

    lines: Sequence[str]
    fits: bool  #: every message can be learned from
    any_fits: bool = True  #: at least one message can be learned from


def describe_sample(
    values: Values, recipe: MessageRecipe, registry: SchemaSource | None = None, keys: Values = ()
) -> Described:
    """Describe how many messages can be learned from, what is missing, and their subjects.

    Parameters
    ----------
    values, keys
        The messages. Keys are needed with a subject only.
    recipe
        The recipe of their codecs.
    registry
        The source of schemas, for the formats that need it.
    """
    rows_per_message = recipe.rows_per_message or 1
    if not values:
        return Described(["sample: the topic holds no messages yet"], fits=False)
    if recipe.grouping is not None:
        return _points(values, keys, recipe.grouping, rows_per_message)
    rows = recipe.codec(registry).decode(values).reshape(len(values), -1)
    good = np.isfinite(rows).all(axis=1)
    item = PACKED_FORMATS.get(recipe.format)
    if item is not None:  # extra rows of a longer message would be ignored
        good &= np.array([len(value or b"") == item * rows.shape[1] for value in values])
    whole = int(good.sum())
    lines = [f"sample: {whole} of {len(values)} messages have all features"]
    if whole < len(values):
        shape = None if whole else recognise(values)
        if shape is not None and recipe.format not in shape.formats:
            lines += _shape(shape)
        elif recipe.format in ARRAY_FORMATS:
            wanted = f"{rows.shape[1]} values" if item is None else f"{item * rows.shape[1]} bytes"
            found = Counter(_size(value, packed=item is not None) for value in values)
            lines.append(f"  a message must have {wanted}: {len(recipe.features)} features per row")
            lines += [f"  {n} of {len(values)} have {size}" for size, n in found.most_common(5)]
        else:
            lines += _features(values, recipe, registry)
    fits = whole == len(values)
    if recipe.subject is not None:
        codec: Any = replace(recipe, records=rows_per_message).subject_codec(registry)
        ids = canonical_all(codec.decode(values, keys)[1])
        fits = fits and None not in ids
        lines.append(_subjects(values, ids, recipe))
    return Described(lines, fits, any_fits=whole > 0)


def _size(value: bytes | None, packed: bool) -> str:
    if packed:
        return f"{len(value or b'')} bytes"
    parsed = parsed_json(value)
    return f"{len(parsed)} values" if isinstance(parsed, list) else "no JSON array"


# Points


def _points(values: Values, keys: Values, grouping: Grouping, rows_per_message: int) -> Described:
    """Describe the rows that points become, and list the series."""
    features, subject, most = grouping.features, grouping.subject, 0
    if subject is None:
        rows = GroupedMessages(grouping, rows_per_message).decode(values)
        rows, what = rows[~np.isnan(rows).all(axis=1)], "rows of the messages"
        read = grouping.groups()
        most = max(len({who for who, _ in read(value, None, 0)}) for value in values)
    else:
        gatherer, n = Gathering(grouping).begin((0, 1)), len(values)
        gatherer.add(0, range(n), [0] * n, values, keys or [None] * n)
        rows, what = gatherer.fold.rows()[0], f"subjects ({subject}) in the messages"
    there = np.isfinite(rows)
    whole = int(there.all(axis=1).sum())
    lines = [f"sample: {len(rows)} {what}; {whole} have all features"]
    shape = recognise(values, grouping.fields if grouping.format == "long" else None)
    known = {one.name for one in shape.series} if shape else set()
    for text, count in zip(features, there.sum(axis=0), strict=True):
        if count < len(rows) or not count:
            name = parse_feature(text).name
            hint = "" if name in known else _did_you_mean(name, known)
            if text.startswith("rate(") and name in known and not count:
                hint = "; a rate needs two points of a host: take a larger --sample"
            lines.append(f"  {text}: in {count} of {len(rows)}{hint}")
    if most > rows_per_message:
        lines.append(f"  a message holds up to {most} groups: set rows_per_message={most}")
    if shape is not None and grouping.format not in shape.formats:
        lines += _shape(shape)
    elif shape is not None:
        lines += ["  series in the messages:", *shown_series(shape.series, subject)]
    return Described(lines, bool(whole == len(rows) > 0), any_fits=len(rows) > 0)


def _shape(shape: Shape) -> list[str]:
    """Say what messages are, the settings that read them, and the series in them."""
    formats = " or ".join(f"format={format}" for format in shape.formats)
    given = " ".join([formats, *(f"{name}={text}" for name, text in shape.settings.items())])
    series = shown_series(shape.series, shape.settings.get("subject")) if shape.series else []
    return [f"  these are {shape.what}: set {given}", *series]


# Names


def _features(values: Values, recipe: MessageRecipe, registry: SchemaSource | None) -> list[str]:
    """Say which features are missing, which name was probably meant, and which names there are."""
    lines: list[str] = []
    known: dict[str, str] = {}
    if recipe.format == "json":
        objects = _objects(values, recipe.nested)
        if len(objects) < len(values):
            lines.append(f"  {len(values) - len(objects)} of {len(values)} are not JSON objects")
        known = {name: _kind(value) for found in objects for name, value in found.items()}
    elif registry is not None:
        lines += _frames(values, recipe.format, registry)
    for name in recipe.features:
        alone = replace(recipe, features=(name,)).codec(registry).decode(values)
        count = int(np.isfinite(alone).sum())
        if count < len(values):
            hint = "" if name in known else _did_you_mean(name, known.keys() - {*recipe.features})
            lines.append(f"  {name}: a number in {count} of {len(values)} messages{hint}")
    if known:
        listed = [f"{name} ({kind})" for name, kind in known.items()]
        more = f" and {len(listed) - MOST_LISTED} more" if len(listed) > MOST_LISTED else ""
        lines.append(f"  keys in the messages: {', '.join(listed[:MOST_LISTED])}{more}")
    return lines


def _frames(values: Values, format: str, registry: SchemaSource) -> list[str]:
    """Say how many messages have no schema, or one of another format."""
    found: Counter[str] = Counter()
    for number in map(schema_number, values):
        schema = None if number is None else registry.schema(number)
        if number is None:
            found["do not begin with the number of a schema"] += 1
        elif schema is None:
            found["name a schema that the registry does not have"] += 1
        elif schema.kind != format:
            found[f"have a schema of {schema.kind}, not of {format}"] += 1
    return [f"  {count} of {len(values)} {what}" for what, count in found.items()]


def _subjects(values: Values, ids: Sequence[bytes | None], recipe: MessageRecipe) -> str:
    """Say whether the records name their subjects, and how many different ones there are."""
    subject, missing = recipe.subject or "", sum(who is None for who in ids)
    if not missing:
        return (
            f"  subject {subject}: in every message; {len({*ids})} different in {len(ids)} records"
        )
    line = (
        f"  subject {subject}: missing or not usable in {missing} of {len(ids)} records, which "
        "would be ignored"
    )
    if missing == len(ids) and not subject.startswith("@"):
        names = {name for found in _objects(values, recipe.nested) for name in found}
        line += _did_you_mean(subject, names - {subject})
    return line


def _kind(value: Any) -> str:
    """Name the kind of a JSON value; None and whatever is not named here is `null`."""
    names = {bool: "boolean", int: "number", float: "number", str: "text", list: "array"}
    return names.get(type(value), "object" if isinstance(value, dict) else "null")


def _objects(values: Values, nested: bool) -> list[dict[str, Any]]:
    """The members of those messages that are JSON objects, by their dotted names."""
    parsed = map(parsed_json, values)
    return [dict(_leaves(found, nested)) for found in parsed if isinstance(found, dict)]


def _leaves(value: dict[str, Any], nested: bool, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, member in value.items():
        if nested and isinstance(member, dict) and prefix.count(".") < DEEPEST_NAME:
            yield from _leaves(member, nested, f"{prefix}{key}.")
        else:
            item = "[0]" if nested and member and isinstance(member, list) else ""
            yield f"{prefix}{key}{item}", member


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    """Ask whether a similar name was meant, if there is one.

    Examples
    --------
    >>> _did_you_mean("memroy", ["cpu", "memory"]), _did_you_mean("CPU", ["cpu", "memory"])
    ('; did you mean memory?', '; did you mean cpu?')
    """
    forms = {other.lower(): other for other in sorted(known)}
    close = difflib.get_close_matches(name.lower(), forms, n=1)
    return f"; did you mean {forms[close[0]]}?" if close else ""

"""Describes a few raw messages to the operator who is about to learn from them.

The result is about single records: `consumers.cli.check` shows it on a terminal and nowhere else.
No scale, mean or range is computed: settings that were chosen by looking at the data would make the
guarantee depend on the data.
"""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

import numpy as np

from stream_dppca.subjects.ids import canonical_all

from ..formats import Format
from ..protocols import RegisteredSchema, SchemaSource
from .cutting import unframed
from .gathered import Gathering, GroupedMessages, Grouping
from .recipe import MessageRecipe
from .registered import DEEPEST_NAME, FRAME_BYTES, LARGEST_ID
from .series import parse_feature
from .shapes import Shape, recognise, shown_series

#: Most names that are listed.
MOST_LISTED: Final = 40
#: Most names of one schema that are considered: types that hold themselves have endlessly many.
MOST_NAMES: Final = 5000
_ITEM_BYTES: Final = {"float32": 4, "float64": 8}
#: Likeness above which one name may be a misspelling of another, for `difflib`.
_ALIKE: Final = 0.6

Values = Sequence[bytes | None]


@dataclass(frozen=True)
class Described:
    """The description of a sample."""

    lines: Sequence[str]
    fits: bool  #: every message can be learned from
    any_fits: bool = True  #: at least one message can be learned from


def describe_sample(
    values: Values,
    recipe: MessageRecipe,
    registry: SchemaSource | None = None,
    keys: Values = (),
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
    features, format, subject = recipe.features, recipe.format, recipe.subject
    rows_per_message = recipe.rows_per_message or 1
    if not values:
        return Described(["sample: the topic holds no messages yet"], fits=False)
    if recipe.grouping is not None:
        return _points(values, keys, recipe.grouping, rows_per_message)
    rows = recipe.codec(registry).decode(values).reshape(len(values), -1, len(features))
    good = np.isfinite(rows).all(axis=(1, 2))
    if format in _ITEM_BYTES:  # extra rows of a longer message would be ignored
        size = rows_per_message * len(features) * _ITEM_BYTES[format]
        good &= np.array([len(value or b"") == size for value in values])
    whole = int(good.sum())
    lines = [f"sample: {whole} of {len(values)} messages have all features"]
    if whole < len(values):
        if not whole and (shape := recognise(values)) is not None:
            lines += _shape(shape)
        elif not whole and (hint := _other_format(values, format, len(features))):
            lines.append(f"  {hint}")
        elif format in _ITEM_BYTES:
            lines += _lengths(values, len(features), rows_per_message, _ITEM_BYTES[format])
        elif format == "json":
            lines += _names(values, features, recipe.nested)
        elif format == "json-array":
            lines += _counts(values, len(features))
        elif registry is not None:
            lines += _fields(values, recipe, registry)
    fits = whole == len(values)
    if subject is not None:
        codec: Any = replace(recipe, records=rows_per_message).subject_codec(registry)
        ids = canonical_all(codec.decode(values, keys)[1])
        missing = sum(who is None for who in ids)
        fits = fits and not missing
        lines.append(_subjects(values, ids, subject, recipe.nested))
    return Described(lines, fits, any_fits=whole > 0)


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
                hint = "; a rate needs two points in time, so a larger sample may have it"
            lines.append(f"  {text}: in {count} of {len(rows)}{hint}")
    if len(rows) and not whole:
        lines.append(
            "  no row has all features: the others get the learned centre if missing=center"
        )
    if most > rows_per_message:
        lines.append(f"  a message holds up to {most} groups: set rows_per_message={most}")
    if shape is None or shape.settings["format"] != grouping.format:
        lines += _shape(shape)
    elif shape.series:
        lines += ["  series in the messages:", *shown_series(shape.series, subject)]
    return Described(lines, bool(whole == len(rows) > 0), any_fits=len(rows) > 0)


def _shape(shape: Shape | None) -> list[str]:
    """Say what messages are, the settings that read them, and the series in them."""
    if shape is None:
        return []
    given = " ".join(f"{name}={text}" for name, text in shape.settings.items())
    lines = [f"  these are {shape.what}: set {given}"]
    return lines + (
        shown_series(shape.series, shape.settings.get("subject")) if shape.series else []
    )


def _subjects(values: Values, ids: Sequence[bytes | None], subject: str, nested: bool) -> str:
    """Say whether the records name their subjects, and how many different ones there are."""
    missing = sum(who is None for who in ids)
    different = len({who for who in ids if who is not None})
    if not missing:
        return f"  subject {subject}: in every message; {different} different in {len(ids)} records"
    line = (
        f"  subject {subject}: missing or not usable in {missing} of {len(ids)} records, which "
        "would be ignored"
    )
    if missing == len(ids) and not subject.startswith("@"):
        keys = {key for found in _objects(values, nested) for key in found}
        line += _did_you_mean(subject, keys - {subject})
    return line


# Other formats


def _other_format(values: Values, format: Format, width: int) -> str | None:
    """Say which other format all messages seem to have."""
    if format != "json" and all(isinstance(_parsed(v), dict) for v in values):
        framed = any(v and not v[0] for v in values)
        kind = ", in the frame of a Schema Registry, which is not needed" if framed else ""
        return f"these are JSON objects{kind}: set format=json"
    arrays = [_parsed(v) for v in values]
    if all(isinstance(found, list) for found in arrays):
        if any(isinstance(item, dict) for found in arrays for item in found):
            return (
                "these are arrays of objects: format=long reads those with one metric each; let "
                "others be split into single messages"
            )
        if format != "json-array":
            return "these are JSON arrays: set format=json-array"
    if format in ("avro", "protobuf"):
        return None
    if all(v is not None and _schema_number(v) is not None for v in values):
        return (
            "these begin like messages of a Schema Registry, with a zero and the number of a "
            "schema: set format=avro or format=protobuf, and schema_registry_url"
        )
    lengths = {len(v or b"") for v in values}
    if format not in _ITEM_BYTES and len(lengths) == 1 and _parsed(values[0]) is None:
        (length,) = lengths
        rows = {kind: length / (item * width) for kind, item in _ITEM_BYTES.items()}
        whole = {kind: int(n) for kind, n in rows.items() if n >= 1 and n.is_integer()}
        kinds = [f"format={kind} and rows_per_message={n}" for kind, n in whole.items()]
        if kinds:
            return (
                f"these are not JSON, and {length} bytes long each; if they are packed rows of "
                f"{width} features, set {', or '.join(kinds)}"
            )
    return None


# JSON


def _names(values: Values, features: Sequence[str], nested: bool) -> list[str]:
    """Missing features, with the key that was probably meant, and the keys of the messages."""
    leaves = _objects(values, nested)
    lines = []
    if len(leaves) < len(values):
        lines.append(f"  {len(values) - len(leaves)} of {len(values)} are not JSON objects")
    keys = Counter(key for found in leaves for key in found)
    kinds = {key: _kind(value) for found in leaves for key, value in found.items()}
    for name in features:
        holders = [found[name] for found in leaves if name in found]
        numbers = sum(isinstance(v, int | float) for v in holders)
        if numbers == len(leaves):
            continue
        line = f"  {name}: in {len(holders)} of {len(leaves)} messages"
        if len(holders) > numbers:
            line += f", and not a number in {len(holders) - numbers} of them"
        lines.append(line + ("" if holders else _did_you_mean(name, keys.keys() - set(features))))
    if lines:
        named = [f"{key} ({kinds[key]})" for key, _ in keys.most_common()]
        lines += _listed(named, "keys in the messages")
    return lines


def _kind(value: Any) -> str:
    """Name the kind of a JSON value; None and whatever is not named here is `null`."""
    names = {bool: "boolean", int: "number", float: "number", str: "text", list: "array"}
    return names.get(type(value), "object" if isinstance(value, dict) else "null")


def _objects(values: Values, nested: bool) -> list[dict[str, Any]]:
    """The members of those messages that are JSON objects, by their dotted names."""
    parsed = map(_parsed, values)
    return [dict(_leaves(found, nested)) for found in parsed if isinstance(found, dict)]


def _leaves(value: dict[str, Any], nested: bool, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, member in value.items():
        if nested and isinstance(member, dict) and prefix.count(".") < DEEPEST_NAME:
            yield from _leaves(member, nested, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", member


def _parsed(value: bytes | None) -> Any:
    try:
        return json.loads(unframed(value or b""))
    except (ValueError, RecursionError):
        return None


def _counts(values: Values, width: int) -> list[str]:
    found: Counter[str] = Counter()
    for value in values:
        parsed = _parsed(value)
        found[f"{len(parsed)} values" if isinstance(parsed, list) else "not JSON arrays"] += 1
    wanted = f"{width} values"
    return [
        f"  {count} of {len(values)} are {what}" + (f", not {wanted}" if "values" in what else "")
        for what, count in found.most_common(5)
        if what != wanted
    ]


# Packed rows


def _lengths(values: Values, width: int, rows_per_message: int, item: int) -> list[str]:
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
            hint = "not a whole number of rows"
        lines.append(f"  {count} of {len(values)} have {length} bytes: {hint}")
    return lines


# Schemas of a registry


def _fields(values: Values, recipe: MessageRecipe, registry: SchemaSource) -> list[str]:
    """Missing features, with the field that was probably meant, and the fields of the schemas."""
    features, format = recipe.features, recipe.format
    lines: list[str] = []
    names: dict[str, None] = {}  # in the order of the schemas
    framed = [(value, _schema_number(value)) for value in values if value]
    schemas = {n: registry.schema(n) for _, n in framed if n is not None}
    bare = len(values) - sum(n is not None for _, n in framed)
    if bare:
        lines.append(f"  {bare} of {len(values)} do not begin with the number of a schema")
    unknown = sum(n is not None and schemas[n] is None for _, n in framed)
    if unknown:
        lines.append(f"  {unknown} of {len(values)} name a schema that the registry does not have")
    kinds = {schema.kind for schema in schemas.values() if schema is not None} - {format}
    lines += [f"  some have schemas of {kind}, not of {format}" for kind in sorted(kinds)]
    for value, number in framed:
        schema = None if number is None else schemas[number]
        if schema is not None:
            names |= dict.fromkeys(islice(_schema_fields(value, schema), MOST_NAMES))
    for name in features:
        alone = replace(recipe, features=(name,)).codec(registry).decode(values)
        count = int(np.isfinite(alone).sum())
        if count < len(values):
            hint = "" if count else _did_you_mean(name, names.keys() - set(features))
            lines.append(f"  {name}: a number in {count} of {len(values)} messages{hint}")
    return lines + _listed(list(names), "fields of the schemas")


def _schema_number(value: bytes) -> int | None:
    """The number of the schema that a message begins with."""
    number = int.from_bytes(value[1:FRAME_BYTES])
    return number if len(value) >= FRAME_BYTES and not value[0] and number <= LARGEST_ID else None


def _schema_fields(value: bytes, schema: RegisteredSchema) -> Iterator[str]:
    """The names of the fields of the type of a message, dotted where they nest."""
    if schema.kind == "avro":
        return _avro_fields(json.loads(schema.text))
    if schema.kind == "protobuf":
        from .protobuf import message_type, protobuf_field_names

        path = message_type(value)
        return iter(()) if path is None else protobuf_field_names(schema, path)
    return iter(())


def _avro_fields(schema: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(schema, list):  # a union
        for branch in schema:
            yield from _avro_fields(branch, prefix)
    elif isinstance(schema, dict) and isinstance(schema.get("type"), dict | list):
        yield from _avro_fields(schema["type"], prefix)
    elif isinstance(schema, dict) and prefix.count(".") < DEEPEST_NAME:
        for field in schema.get("fields", ()):
            below = list(_avro_fields(field["type"], f"{prefix}{field['name']}."))
            yield from below or [f"{prefix}{field['name']}"]


# Names


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    """Ask whether a similar name was meant, if there is one.

    Examples
    --------
    >>> _did_you_mean("memroy", ["cpu", "memory"]), _did_you_mean("CPU", ["cpu", "memory"])
    ('; did you mean memory?', '; did you mean cpu?')
    >>> _did_you_mean("raed", ["cpu", "disk.read"]), _did_you_mean("x", ["cpu"])
    ('; did you mean disk.read?', '')
    """
    by_form: dict[str, str] = {}
    others = sorted(known, key=lambda other: (other.count("."), other))
    for other in others:  # a whole name before the last part of another
        by_form.setdefault(other.lower(), other)
    for other in others:
        by_form.setdefault(other.lower().rsplit(".", 1)[-1], other)
    close = difflib.get_close_matches(name.lower(), by_form, n=1, cutoff=_ALIKE)
    return f"; did you mean {by_form[close[0]]}?" if close else ""


def _listed(names: Sequence[str], what: str) -> list[str]:
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return [f"  {what}: {', '.join(names[:MOST_LISTED])}{more}"] if names else []

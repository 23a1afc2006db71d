"""Names of the message formats that the service can read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

Format = Literal[
    "json", "json-array", "float32", "float64", "avro", "protobuf", "otlp", "otlp-json", "long"
]
#: The formats in which one message can hold several rows, and the bytes of a number in them.
PACKED_FORMATS: Final[Mapping[str, int]] = {"float32": 4, "float64": 8}
#: The formats without names in their messages.
ARRAY_FORMATS: Final[frozenset[str]] = frozenset({*PACKED_FORMATS, "json-array"})
#: The formats whose schemas are in a Schema Registry.
REGISTERED_FORMATS: Final[frozenset[Format]] = frozenset({"avro", "protobuf"})
#: The formats whose messages hold points of series, which are gathered into rows. A sample is tried
#: as each of them, in this order.
POINT_FORMATS: Final[tuple[Format, ...]] = ("otlp", "otlp-json", "long")

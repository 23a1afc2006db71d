"""Messages made by a coverage-guided fuzzer: `make fuzz`."""

from typing import Final

#: What can be fuzzed: the formats, and the batches of messages that a broker sends.
TARGETS: Final[tuple[str, ...]] = (
    "json",
    "json-array",
    "float32",
    "float64",
    "avro",
    "protobuf",
    "otlp",
    "otlp-json",
    "long",
    "batch",
)

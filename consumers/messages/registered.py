"""Decodes messages whose schema is in a Schema Registry: the frame around Avro and Protobuf.

Such a message begins with a zero byte and the id of its schema, four bytes, big-endian (the wire
format of Confluent). The schema of an id never changes, so it is fetched once and kept, with others
of `KEPT_BYTES` altogether. Messages of more schemas than that are read in several turns.

An id is part of a record, so it must not decide about other records:

- An id that the registry does not know makes **its own message** a null. That answer counts for the
  messages that were fetched before the request, and is not kept for any other: ids are given in
  order, so with a memory, however short, a record could name the next id before it exists, and
  make nulls of the messages that are written with it a moment later. Serializers register a schema
  before they write with it, so the schema of a message that is read can be found, whatever was
  requested before. The price is one request for each unknown id in each fetch; `prepare` bounds
  the time that these take from the loop.
- The messages of a schema that cannot be used (another kind, damaged, larger than
  `LARGEST_SCHEMA`, no numbers in it) are nulls, too.
- If the registry does not answer, the service waits, and the error does not name the id. Nothing is
  skipped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from stream_dppca.arrays import FloatArray

from ..protocols import RegisteredSchema, SchemaSource
from .codecs import RowPerMessage, Subject, Values

#: Bytes before the message proper: the zero and the id.
FRAME_BYTES: Final = 5
#: Ids are positive 32-bit integers; registries do not even understand requests for others.
LARGEST_ID: Final = 2**31 - 1
#: Characters of the largest schema that is compiled, those that it refers to included. Compiling
#: one of this size takes a few hundredths of a second.
LARGEST_SCHEMA: Final = 1 << 18
#: Characters of the longest name in a schema, with what it is inside of. Schemas refer to types by
#: short names, of which full ones are made.
LONGEST_NAME: Final = 512
#: Bytes of the compiled schemas that are kept, by their own estimates.
KEPT_BYTES: Final = 1 << 25

#: Reads a whole message, frame included, into as many numbers as there are features.
RowReader = Callable[[bytes], Sequence[float]]


class Compiled(NamedTuple):
    """A compiled schema."""

    read: RowReader
    size: int  #: bytes that it takes, at most


class UnusableSchema(Exception):
    """No message of this schema can be read."""


class MalformedMessage(Exception):
    """The message is not what its schema says, or a feature in it is not a number."""


class RegisteredCodec(RowPerMessage):
    """Decodes messages of one row each, by the schema that each of them names.

    Parameters
    ----------
    width
        Number of features.
    max_bytes
        Longer messages are nulls.
    source
        The source of schemas.
    compile
        Makes the reader of a schema. Any error that it raises means that the schema cannot be
        used; it raises `UnusableSchema` on purpose.
    with_id
        True if the reader finds an id behind the features.
    """

    def __init__(
        self,
        width: int,
        max_bytes: int,
        source: SchemaSource,
        compile: Callable[[RegisteredSchema], Compiled],
        with_id: bool,
    ) -> None:
        super().__init__(width, max_bytes, (self._read,), with_id)
        self._source, self._compile = source, compile
        self._readers: dict[bytes, Compiled] = {}  # by the frame that a message begins with
        self._kept_bytes = 0

    def decode_with_ids(self, values: Values) -> tuple[FloatArray, list[Subject]]:
        """Rows of the messages, in order, and the id of the subject of each."""
        turns = list(map(super().decode_with_ids, self._turns(values)))
        rows = np.concatenate([np.empty((0, self._width)), *(rows for rows, _ in turns)])
        return rows, [who for _, ids in turns for who in ids]

    def _turns(self, values: Values) -> Iterator[Values]:
        """The messages, in parts whose schemas are ready when they are yielded."""
        unknown: set[bytes] = set()
        at = 0
        while at < len(values):
            ready = self.prepare(values[at:], unknown, math.inf)
            yield values[at : at + ready]
            at += ready

    def read(self, values: Values) -> FloatArray:
        return super().decode_with_ids(values)[0]

    def _read(self, value: bytes) -> Sequence[float]:
        return self._readers[value[:FRAME_BYTES]].read(value)

    def prepare(self, values: Values, unknown: set[bytes], seconds: float) -> int:
        """Fetch the schemas that these messages name and that are not known yet."""
        limit, until = self._max_bytes, time.monotonic() + seconds
        frames = [v[:FRAME_BYTES] if v is not None and len(v) <= limit else b"" for v in values]
        needed = 0
        for frame in dict.fromkeys(frames):
            if len(frame) < FRAME_BYTES or frame[0] or frame in unknown:
                continue
            if (known := self._readers.pop(frame, None)) is None:
                number = int.from_bytes(frame[1:])
                if number > LARGEST_ID:
                    continue
                if time.monotonic() > until:
                    return frames.index(frame)
                schema = self._source.schema(number)
                if schema is None:
                    unknown.add(frame)
                    continue
                known = self._compiled(schema)
                self._kept_bytes += known.size
            self._readers[frame] = known  # as the newest one
            needed += known.size
            self._forget(needed)
            if KEPT_BYTES < needed != known.size:
                return frames.index(frame)
        return len(values)

    def _forget(self, needed: int) -> None:
        """Forget schemas, the oldest first, but none of the newest of this size.

        A schema that was forgotten is fetched again when needed: results do not depend on it.
        """
        while self._kept_bytes > max(KEPT_BYTES, needed):
            frame = next(iter(self._readers))
            self._kept_bytes -= self._readers.pop(frame).size

    def _compiled(self, schema: RegisteredSchema) -> Compiled:
        """Compile a schema; whatever is wrong with it, its messages are nulls.

        A schema is no more trustworthy than a message: its producer may have registered it. No
        list of the errors of parsers would be complete, so everything is caught, here alone.
        """
        try:
            if sum(len(one.text) for one in schema.each()) > LARGEST_SCHEMA:
                return _REFUSED
            return self._compile(schema)
        except Exception:
            return _REFUSED


def _refuse(value: bytes) -> Sequence[float]:
    raise MalformedMessage


#: Stands for a schema that cannot be used.
_REFUSED: Final = Compiled(_refuse, 1000)

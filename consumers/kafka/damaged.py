"""Reads with kafka-python what librdkafka cannot get past.

librdkafka stops for good at a batch that it cannot decompress, and it cannot decompress all that
brokers accept (lz4 with bytes after its frame).
"""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka import KafkaError

from ..errors import Unavailable
from ..protocols import Chunk
from .client import translated_errors
from .config import KafkaConfig
from .reader import KafkaReader

__all__ = ["DAMAGED", "DamagedBatches"]

#: Errors of librdkafka at a batch whose frame is damaged.
DAMAGED: Final = frozenset((KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION))
#: Longest wait of one read.
READ_SECONDS: Final = 0.2


class DamagedBatches:
    """Reads past damaged batches of a topic; connects when there is one."""

    def __init__(self, config: KafkaConfig, topic: str, *, stamped: bool = False) -> None:
        self._config, self._topic, self._stamped = config, topic, stamped
        self._reader: KafkaReader | None = None

    def pass_one(self, partition: int, start: int) -> tuple[list[Chunk], int]:
        """Return the messages from an offset on, past the batch there, and the next offset."""
        if self._reader is None:
            with translated_errors():
                self._reader = KafkaReader(self._config, self._topic, stamped=self._stamped)
        chunks: list[Chunk] = []
        self._reader.assign({partition: start})
        deadline = time.monotonic() + self._config.request_timeout_s
        while (at := self._reader.positions()[partition]) <= start:
            if time.monotonic() > deadline:
                raise Unavailable(f"{self._topic}:{partition} could not be read")
            chunks += self._reader.read(READ_SECONDS)
        return chunks, at

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

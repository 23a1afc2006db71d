"""A plain producer: sends messages to one topic, without a task and without transactions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from kafka import KafkaProducer  # type: ignore[import-untyped]

from ..protocols import Message
from .client import close_client, send_messages, translated_errors
from .config import KafkaConfig


class MessageProducer:
    """Sends messages to a topic for as long as it is open.

    `KafkaCluster.publish` makes a producer for each call, and a cluster remembers the identity of
    every producer for a day. One of these serves for a whole run.
    """

    def __init__(self, config: KafkaConfig, topic: str) -> None:
        self._config = dataclasses.replace(config, output_topic=topic)
        with translated_errors():
            self._producer = KafkaProducer(**config.producer, linger_ms=5)

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages, and return once the brokers have them."""
        with translated_errors():
            send_messages(self._producer, self._config, messages)

    def close(self) -> None:
        close_client(self._producer)

"""The address of the cluster, and the options that all its clients share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

#: Largest message on the state and output topics, and the largest that is sent to them. A state
#: grows with the square of the number of features: 6 MB with 1000 of them, 23 MB with 2048.
MAX_RECORD_BYTES: Final = 32 << 20
#: Rows that one read of the input may bring, so that messages of many rows do not fill the memory.
READ_ROWS: Final = 1 << 16
#: Bytes of messages after which one read of the input ends. It takes so few messages at a time that
#: they are not larger than this together, so it may bring twice as many bytes.
READ_BYTES: Final = 32 << 20


@dataclass(frozen=True)
class KafkaConfig:
    """The address of the cluster, and the topics and the group of one model."""

    connection: Mapping[str, Any]  #: bootstrap_servers, TLS and SASL, as kafka-python names them
    group: str
    input_topic: str
    state_topic: str
    output_topic: str
    session_timeout_s: float = 10.0
    request_timeout_s: float = 30.0
    transaction_timeout_s: float = 60.0
    fetch: Mapping[str, Any] = field(default_factory=dict)  #: of the reader of the input
    max_message_bytes: int = 1 << 20  #: longer messages of the input are not kept
    #: The connection in librdkafka's names, if librdkafka reads the input.
    librdkafka: Mapping[str, Any] | None = None
    #: Makes it again in another process, where a TLS context cannot be sent.
    again: Callable[[], KafkaConfig] | None = None

    @property
    def most_messages(self) -> int:
        """Most messages of one read of the input."""
        return int(self.fetch.get("max_poll_records", 5000))

    @property
    def messages_at_once(self) -> int:
        """Most messages that one read takes from its client at once."""
        return max(1, READ_BYTES // self.max_message_bytes)

    @property
    def client(self) -> dict[str, Any]:
        timeout_ms = int(self.request_timeout_s * 1000)
        return {
            **self.connection,
            "request_timeout_ms": timeout_ms,
            "bootstrap_timeout_ms": timeout_ms,
            "reconnect_backoff_max_ms": 2000,
        }

    @property
    def producer(self) -> dict[str, Any]:
        return {
            **self.client,
            "metrics_enabled": False,
            "max_block_ms": int(self.request_timeout_s * 1000),
            "max_request_size": MAX_RECORD_BYTES,
            "retry_backoff_ms": 5,  # the pause before a transaction that directly follows another
            "allow_auto_create_topics": False,
        }

    @property
    def consumer(self) -> dict[str, Any]:
        return {
            **self.client,
            "metrics_enabled": False,
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "isolation_level": "read_committed",
            "allow_auto_create_topics": False,
        }


@dataclass(frozen=True, repr=False)  # it holds passwords
class TaskConnection:
    """Connection to the cluster for a task of an engine. It can be pickled."""

    name: str  #: tells it from others
    config: Callable[[], KafkaConfig]  #: made where it is needed: a TLS context cannot be pickled

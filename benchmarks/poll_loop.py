"""The bare poll loop that the service is measured against, in a process of its own.

python -m benchmarks.poll_loop CLIENT SERVERS TOPIC MESSAGES FORMAT

CLIENT is kafka-python or confluent. JSON messages are decoded, packed ones only received.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

import msgspec


def kafka_python(servers: str, topic: str) -> Iterator[list[bytes]]:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=servers,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        max_partition_fetch_bytes=4 << 20,
        metrics_enabled=False,
        max_poll_records=5000,
    )
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek_to_beginning()
    while True:
        for records in consumer.poll(timeout_ms=1000).values():
            yield [record.value for record in records]


def confluent(servers: str, topic: str) -> Iterator[list[bytes]]:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "benchmark",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "check.crcs": True,
            "fetch.message.max.bytes": 4 << 20,
            "queued.max.messages.kbytes": 32 << 10,
            "fetch.queue.backoff.ms": 5,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    while True:
        messages = consumer.consume(1, 1.0)
        if messages:
            messages += consumer.consume(4999, 0)
            yield [message.value() for message in messages if message.error() is None]


CLIENTS: dict[str, Callable[[str, str], Iterator[list[bytes]]]] = {
    "kafka-python": kafka_python,
    "confluent": confluent,
}


def main(client: str, servers: str, topic: str, messages: str, format: str) -> None:
    """Print seconds per message, on the wall clock and on the processor, from the first message."""
    shape = msgspec.defstruct("Shape", [(f"f{i}", float) for i in range(128)], gc=False)
    decode = msgspec.json.Decoder(shape).decode
    seen = first = 0
    for values in CLIENTS[client](servers, topic):
        if not first:
            first, wall, processor = len(values), time.perf_counter(), time.process_time()
        seen += len(values)
        if format == "json":
            for value in values:
                decode(value)
        if seen >= int(messages):
            break
    count = seen - first
    print((time.perf_counter() - wall) / count, (time.process_time() - processor) / count)


if __name__ == "__main__":
    main(*sys.argv[1:])

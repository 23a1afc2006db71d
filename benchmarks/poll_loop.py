"""The bare poll loop that the service is measured against, in a process of its own.

python -m benchmarks.poll_loop SERVERS TOPIC MESSAGES FORMAT
"""

from __future__ import annotations

import sys
import time

import msgspec
from kafka import KafkaConsumer, TopicPartition


def main(servers: str, topic: str, messages: str, format: str) -> None:
    """Print messages a second, from the first that arrives; they are decoded if they are JSON."""
    consumer = KafkaConsumer(
        bootstrap_servers=servers, enable_auto_commit=False, auto_offset_reset="earliest",
        isolation_level="read_committed", max_partition_fetch_bytes=4 << 20, metrics_enabled=False,
        max_poll_records=5000,
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek_to_beginning()
    shape = msgspec.defstruct("Shape", [(f"f{i}", float) for i in range(128)], gc=False)
    decode = msgspec.json.Decoder(shape).decode
    seen, first, start = 0, 0, 0.0
    while seen < int(messages):
        for records in consumer.poll(timeout_ms=1000).values():
            if not start:
                start, first = time.perf_counter(), len(records)
            seen += len(records)
            if format == "json":
                for record in records:
                    decode(record.value)
    print((seen - first) / (time.perf_counter() - start))
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])

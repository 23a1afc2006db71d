"""Telemetry on a Kafka topic, private components from the service, and scores made with them.

    python examples/kafka_end_to_end.py                       # starts a broker
    KAFKA_BOOTSTRAP_SERVERS=kafka:9092 python examples/kafka_end_to_end.py

1. A producer sends records as JSON, in their own units.
2. `stream-dppca serve` learns from the topic and publishes private components to another.
3. A consumer reads the newest release, and scores a record of its own with it.

The parts share nothing but topics: in production each is a separate program.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import numpy as np
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

from stream_dppca import Projector

sys.path.append(str(Path(__file__).resolve().parents[1]))  # `demo` is in the clone only
from demo.broker.local import provide_broker

FEATURES = ("cpu", "memory", "disk.read")
BATCH, BATCHES = 2000, 5


def send_records(servers: str, topic: str) -> None:
    """Send telemetry in which cpu and memory rise and fall together."""
    with KafkaAdminClient(bootstrap_servers=servers) as admin:
        admin.create_topics({topic: {"num_partitions": 2, "replication_factor": 1}})
        admin.wait_for_topics([topic])
    producer = KafkaProducer(bootstrap_servers=servers, linger_ms=20, compression_type="gzip")
    rng = np.random.default_rng(1)
    for i in range(BATCH * BATCHES):
        load, a, b, c = rng.standard_normal(4).tolist()
        record = {
            "host": f"host-{i % 20}",
            "cpu": 40 + 15 * (load + 0.2 * a),
            "memory": 8e9 + 2e9 * (load + 0.2 * b),
            "disk": {"read": 5e6 + 1e6 * c},
        }
        producer.send(topic, json.dumps(record).encode(), key=record["host"].encode())
    producer.flush()
    producer.close()


def start_service(servers: str, topic: str) -> subprocess.Popen[bytes]:
    """Start the service, as `stream-dppca serve` in a shell would."""
    settings = {
        "BOOTSTRAP_SERVERS": servers,
        "INPUT_TOPIC": topic,
        "FEATURES": ",".join(FEATURES),
        "EPSILON": "1",
        "DELTA": "1e-6",
        "BATCH_SIZE": str(BATCH),
        "HTTP_PORT": "0",
    }
    environment = {**os.environ, **{f"DPPCA_{name}": value for name, value in settings.items()}}
    return subprocess.Popen([sys.executable, "-m", "consumers.cli", "serve"], env=environment)


def newest_release(servers: str, topic: str) -> bytes:
    """Wait for the release of the last batch."""
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=servers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    try:
        for message in consumer:  # a release may come more than once, with the same bytes
            release = json.loads(message.value)
            print(f"release of batch {release['batch']}: {release['status']}")
            if release["batch"] == BATCHES:
                return bytes(message.value)
    finally:
        consumer.close()
    raise RuntimeError("the topic has ended")


def main() -> None:
    with provide_broker() as servers:
        topic = f"telemetry-{uuid.uuid4().hex[:8]}"
        send_records(servers, topic)
        service = start_service(servers, topic)
        try:
            published = newest_release(servers, f"{topic}.components")
        finally:
            service.terminate()
            service.wait(60)
    release = json.loads(published)
    print("loadings:", dict(zip(release["features"], release["components"][0], strict=True)))
    print("privacy:", release["privacy"])
    projector = Projector.from_release(published)
    for what, record in {
        "ordinary": {"cpu": 55.0, "memory": 10e9, "disk.read": 5e6},
        "strange": {"cpu": 95.0, "memory": 2e9, "disk.read": 5e6},
    }.items():
        along, spe = projector.transform(record)[0], projector.spe(record)
        print(f"{what}: score {along:+.2f}, anomaly {spe:.2f}")


if __name__ == "__main__":
    main()

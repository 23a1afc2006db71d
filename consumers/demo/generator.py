"""`python -m consumers.demo.generator`: telemetry of a simulated fleet, into a topic.

    python -m consumers.demo.generator --topic telemetry --rate 5000

The machines are those of `consumers.demo.telemetry`, so what the service should find is known.
Values are sent divided by their public scales: the service takes records as they come. TLS and
SASL are set as for the service (`DPPCA_SECURITY_PROTOCOL`, `DPPCA_SASL_*`, `DPPCA_SSL_*`).

| format | a message is | the service reads it as |
|---|---|---|
| `json` | one record, an object with the names of the features | `format=json` |
| `packed` | 64 records (`--rows`), little-endian float32 | `format=float32` |
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Literal, get_args

import numpy as np

from ..errors import ClusterError, ServiceError
from ..events import set_up_logs
from ..kafka.cluster import KafkaCluster
from ..kafka.config import KafkaConfig
from ..protocols import Cluster, Message, TopicInfo
from ..settings import load_settings
from .telemetry import FEATURES, public_scaler, telemetry

__all__ = ["Format", "Send", "ensure_topic", "main", "messages", "produce", "service_format"]

Format = Literal["json", "packed"]
#: Takes messages to where they belong; back once they are there.
Send = Callable[[Sequence[Message]], None]

MACHINES: Final = 64  #: keys, so that every partition gets some
TICK_SECONDS: Final = 0.1  #: between two sends
#: Who is further behind than this drops the rest: a burst would say nothing about the rate.
DEBT_SECONDS: Final = 1.0
#: A demonstration must not fill a disk: 256 MiB a partition, and nothing for longer than an hour.
RETENTION: Final = {
    "retention.bytes": str(256 << 20),
    "retention.ms": str(3600 * 1000),
    "segment.bytes": str(32 << 20),
}
_SCALES: Final = np.array([(public_scaler().scales or {})[name] for name in FEATURES])


def service_format(format: Format) -> Literal["json", "float32"]:
    """The service's name for a format."""
    return "json" if format == "json" else "float32"


def messages(format: Format, rows: int = 64, seed: int | None = None) -> Iterator[list[Message]]:
    """Endless lists of messages, each list with `rows` records of one machine.

    Examples
    --------
    >>> [packed] = next(messages("packed", rows=64))
    >>> len(packed.value) == 64 * 12 * 4
    True
    >>> first, *others = next(messages("json", rows=64))
    >>> len(others), sorted(json.loads(first.value)) == sorted(FEATURES)
    (63, True)
    """
    for machine, block in zip(itertools.count(), telemetry(seed, rows), strict=False):
        key = f"machine-{machine % MACHINES:02d}".encode()
        scaled = block / _SCALES
        if format == "packed":
            yield [Message(key, scaled.astype("<f4").tobytes())]
        else:
            numbers = scaled.round(5).tolist()
            yield [
                Message(key, json.dumps(dict(zip(FEATURES, row, strict=True))).encode())
                for row in numbers
            ]


def ensure_topic(log: Cluster, topic: str, partitions: int = 4) -> None:
    """Make the topic if it is not there."""
    if log.topic(topic) is None:
        log.create_topic(topic, TopicInfo(partitions, RETENTION), -1)


def produce(
    send: Send,
    batches: Iterator[list[Message]],
    *,
    rows: int,
    rate: float,
    stop: threading.Event,
    seconds: float | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> int:
    """Send `rate` records a second until `stop`; returns how many were sent.

    Brokers that go away are waited for, and what was not sent meanwhile is left out.
    """
    sent = 0
    began = paid_until = time.monotonic()
    while not stop.is_set() and (seconds is None or time.monotonic() - began < seconds):
        now = time.monotonic()
        paid_until = max(paid_until, now - max(DEBT_SECONDS, 2 * rows / rate))
        due = int((now - paid_until) * rate / rows)
        pause = TICK_SECONDS
        if due:
            try:
                send(list(itertools.chain(*itertools.islice(batches, due))))
                sent += due * rows
            except ClusterError as error:
                tell(f"sending failed, going on ({error})")
                pause = 1.0
            paid_until += due * rows / rate
        stop.wait(max(0.0, now + pause - time.monotonic()))
    return sent


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m consumers.demo.generator",
        description="Telemetry of a simulated fleet, into a Kafka topic.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--bootstrap-servers", default="localhost:9092", metavar="HOST:PORT,…")
    parser.add_argument("--topic", default="telemetry", help="made if it is not there")
    parser.add_argument("--partitions", type=int, default=4, help="of the topic, if it is made")
    parser.add_argument("--rate", type=float, default=5000.0, help="records a second")
    parser.add_argument("--format", choices=get_args(Format), default="json")
    parser.add_argument("--rows", type=int, default=64, help="records a packed message")
    parser.add_argument("--seconds", type=float, help="how long; 0: only make the topic")
    parser.add_argument("--seed", type=int, help="for the same records again")
    options = parser.parse_args(arguments)
    for name in ("partitions", "rate", "rows"):
        if not getattr(options, name) > 0:
            parser.error(f"--{name} must be positive")

    set_up_logs(sys.stderr)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        config = _config(options.bootstrap_servers, options.topic)
        ensure_topic(KafkaCluster(config), options.topic, options.partitions)
        if options.seconds == 0:
            _say(f"topic {options.topic} is there")
            return 0
        _say(
            f"{options.rate:,.0f} records/s to {options.topic} at {options.bootstrap_servers}, "
            f"for the service: --format {service_format(options.format)} --center pairs "
            f"--features {','.join(FEATURES)}"
        )
        rows = options.rows
        if options.format == "json":  # one message each: as even a flow as the rate allows
            rows = max(1, min(64, int(options.rate * TICK_SECONDS)))
        with _sender(config) as send:
            sent = produce(
                send, messages(options.format, rows, options.seed), rows=rows, rate=options.rate,
                stop=stop, seconds=options.seconds, tell=_say,
            )  # fmt: skip
    except ServiceError as error:
        _say(f"{type(error).__name__}: {error}")
        return 1
    _say(f"{sent:,} records sent")
    return 0


def _config(bootstrap_servers: str, topic: str) -> KafkaConfig:
    """The cluster, with `topic` as what is written to; how to log in is in the environment."""
    settings = load_settings(
        {"bootstrap_servers": bootstrap_servers, "input_topic": topic, "features": FEATURES,
         "epsilon": 1.0, "delta": 1e-6, "batch_size": 2}
    )  # fmt: skip
    return KafkaConfig(
        connection={**settings.connection(), "client_id": "stream-dppca-generator"},
        group="", input_topic=topic, state_topic="", output_topic=topic,
        request_timeout_s=settings.request_timeout_s,
    )  # fmt: skip


@contextmanager
def _sender(config: KafkaConfig) -> Iterator[Send]:
    """One producer for the whole run. (`KafkaCluster.publish` makes one each time, and a cluster
    remembers the id of every producer for a day.)"""
    from kafka import KafkaProducer  # type: ignore[import-untyped]
    from kafka.errors import KafkaError  # type: ignore[import-untyped]

    try:
        producer = KafkaProducer(**config.producer, linger_ms=5)
    except KafkaError as error:
        raise ClusterError(f"{type(error).__name__}: {error}") from error

    def send(records: Sequence[Message]) -> None:
        try:
            sent = [producer.send(config.output_topic, r.value, key=r.key) for r in records]
            for future in sent:
                future.get(timeout=config.request_timeout_s)
        except KafkaError as error:
            raise ClusterError(f"{type(error).__name__}: {error}") from error

    try:
        yield send
    finally:
        producer.close(timeout=1.0)


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    raise SystemExit(main())

"""`python -m demo.generator` sends telemetry of a simulated fleet to a topic, as JSON.

    python -m demo.generator --topic telemetry --rate 5000

The machines are those of `demo.telemetry`, so the direction that the service should find
is known. Values are sent as a monitoring system sends them, in their own units, one record per
message. TLS and SASL are set as for the service (`DPPCA_SECURITY_PROTOCOL`, `DPPCA_SASL_*`,
`DPPCA_SSL_*`).
"""

from __future__ import annotations

import itertools
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Final

import msgspec
from pydantic import Field

from consumers.cli.flags import Options, parse_options
from consumers.errors import ClusterError, ServiceError
from consumers.events import set_up_logs
from consumers.kafka.cluster import KafkaCluster
from consumers.kafka.configure import kafka_config
from consumers.kafka.confluent import MessageProducer
from consumers.protocols import Cluster, Message, TopicInfo
from consumers.settings import ClusterSettings, load_part

from .telemetry import FEATURES, cooling_fails, telemetry, without_cooling

MACHINES: Final = 64  #: number of keys, so that every partition gets some
FAULTY: Final = b"machine-07"  #: the one whose cooling fails
PARTITIONS: Final = 4
TICK_SECONDS: Final = 0.1  #: between two sends
#: Records that are more than this late are left out: a burst would distort the rate.
DEBT_SECONDS: Final = 1.0
#: A demonstration must not fill a disk: 256 MiB per partition, and nothing for longer than an hour.
RETENTION: Final = {
    "retention.bytes": str(256 << 20),
    "retention.ms": str(3600 * 1000),
    "segment.bytes": str(32 << 20),
}
#: A service with privacy per subject needs an input topic with this setting.
BROKER_TIME: Final = {"message.timestamp.type": "LogAppendTime"}


def messages(
    seed: int | None = None,
    change_after: int | None = None,
    fault_after: int | None = None,
    machines: int = MACHINES,
) -> Iterator[Message]:
    """Yield messages without end, each a record of one machine; the machines take turns.

    The key of a message is the name of its machine. The fleet changes after `change_after` records;
    see `telemetry`. The cooling of `FAULTY` fails after `fault_after` records; see `cooling_fails`.

    Examples
    --------
    >>> message = next(messages())
    >>> message.key, sorted(msgspec.json.decode(message.value)) == sorted(FEATURES)
    (b'machine-00', True)
    """
    blocks = telemetry(seed, change_after=change_after)
    records = itertools.chain.from_iterable(block.round(3).tolist() for block in blocks)
    for number, values in enumerate(records):
        key = f"machine-{number % machines:02d}".encode()
        record = dict(zip(FEATURES, values, strict=True))
        if key == FAULTY and cooling_fails(number, fault_after):
            record = without_cooling(record)
        yield Message(key, msgspec.json.encode(record))


def ensure_topic(cluster: Cluster, topic: str, *, broker_time: bool = False) -> None:
    """Create the topic if it does not exist; `broker_time` lets brokers set the times in it."""
    if cluster.topic(topic) is None:
        configs = {**RETENTION, **(BROKER_TIME if broker_time else {})}
        cluster.create_topic(topic, TopicInfo(PARTITIONS, configs), -1)


def produce(
    send: Callable[[Sequence[Message]], None],
    records: Iterator[Message],
    rate: float,
    stop: threading.Event,
    seconds: float | None = None,
) -> int:
    """Send `rate` records per second until `stop`; return how many were sent.

    If the brokers go away, wait for them; records that fell due in the meantime are left out.
    """
    sent = 0
    began = paid_until = time.monotonic()
    while not stop.is_set() and (seconds is None or time.monotonic() - began < seconds):
        now = time.monotonic()
        paid_until = max(paid_until, now - max(DEBT_SECONDS, 2 / rate))
        due = int((now - paid_until) * rate)
        pause = TICK_SECONDS
        if due:
            try:
                send(list(itertools.islice(records, due)))
                sent += due
            except ClusterError as error:
                _say(f"sending failed, trying again ({error})")
                pause = 1.0
            paid_until += due / rate
        stop.wait(max(0.0, now + pause - time.monotonic()))
    return sent


class GeneratorOptions(Options):
    """Options of the generator."""

    about = "Send telemetry of a simulated fleet to a Kafka topic."

    bootstrap_servers: str = "localhost:9092"
    """brokers to ask first"""
    topic: str = "telemetry"
    """topic, created if it does not exist"""
    rate: float = Field(default=5000.0, gt=0)
    """records per second"""
    seconds: float | None = None
    """duration; 0 only creates the topic; without it, until Ctrl-C"""
    change_after: int | None = Field(default=None, gt=0)
    """records after which the fleet changes; without it, never"""
    fault_after: int | None = Field(default=None, gt=1)
    """records after which the cooling of machine-07 fails for a while; without it, never"""
    machines: int = Field(default=MACHINES, gt=0)
    """machines of the fleet, which take turns"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_options("python -m demo.generator", GeneratorOptions, arguments)
    set_up_logs(sys.stderr)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    servers, topic, rate = options.bootstrap_servers, options.topic, options.rate
    records = messages(None, options.change_after, options.fault_after, options.machines)
    try:
        given = {"bootstrap_servers": servers, "input_topic": topic}
        config = kafka_config(load_part(ClusterSettings, given), "stream-dppca-generator")
        ensure_topic(KafkaCluster(config), topic)
        _say(
            f"{rate:,.0f} records/s to {topic} at {servers}, for a service with --features "
            + ",".join(FEATURES)
        )
        with closing(MessageProducer(config, topic)) as producer:
            sent = produce(producer.send, records, rate, stop, options.seconds)
    except ServiceError as error:
        _say(f"{type(error).__name__}: {error}")
        return 1
    _say(f"{sent:,} records sent")
    return 0


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    raise SystemExit(main())

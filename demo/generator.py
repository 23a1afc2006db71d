"""`python -m demo.generator` sends telemetry of a simulated fleet to a topic.

    python -m demo.generator --topic telemetry --rate 5000

The machines are those of `demo.telemetry`, so the direction that the service should find
is known. Values are sent as a monitoring system sends them, in their own units. TLS and SASL are
set as for the service (`DPPCA_SECURITY_PROTOCOL`, `DPPCA_SASL_*`, `DPPCA_SSL_*`).

| format | a message is | the service reads it as |
|---|---|---|
| `json` | one record, an object with the names of the features | `format=json` |
| `packed` | 64 records (`--rows`), packed | `format=float32`, `rows_per_message=64` |
| `otlp` | one record, as gauges of OpenTelemetry | `format=otlp`, `subject=host.name` |
"""

from __future__ import annotations

import itertools
import json
import signal
import sys
import threading
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Final, Literal

from pydantic import Field

from consumers.cli.flags import Options, add_options, read_options
from consumers.errors import ClusterError, ServiceError
from consumers.events import set_up_logs
from consumers.kafka.cluster import KafkaCluster
from consumers.kafka.configure import kafka_config
from consumers.kafka.confluent import MessageProducer
from consumers.protocols import Cluster, Message, TopicInfo
from consumers.settings import ClusterSettings, load_part

from .telemetry import FEATURES, cooling_fails, telemetry, without_cooling

Format = Literal["json", "packed", "otlp"]
#: Sends messages, and returns once they have arrived.
Send = Callable[[Sequence[Message]], None]

ROWS_PER_MESSAGE: Final = 64  #: records in a packed message
MACHINES: Final = 64  #: number of keys, so that every partition gets some
FAULTY: Final = b"machine-07"  #: the one whose cooling fails
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


def service_format(format: Format) -> str:
    """Return the service's name for a format."""
    return "float32" if format == "packed" else format


def messages(
    format: Format,
    rows: int = ROWS_PER_MESSAGE,
    seed: int | None = None,
    change_after: int | None = None,
    machines: int = MACHINES,
    fault_after: int | None = None,
) -> Iterator[list[Message]]:
    """Yield lists of messages without end, each list with `rows` records of one machine.

    The machines take turns, and the key of a message is the name of its machine.

    The fleet changes after `change_after` records; see `telemetry`. The cooling of `FAULTY` fails
    after `fault_after` records; see `cooling_fails`.

    Examples
    --------
    >>> [packed] = next(messages("packed", rows=64))
    >>> len(packed.value) == 64 * 12 * 4
    True
    >>> first, *others = next(messages("json", rows=64))
    >>> len(others), sorted(json.loads(first.value)) == sorted(FEATURES)
    (63, True)
    """
    blocks = telemetry(seed, rows, change_after)
    for machine, plain in zip(itertools.count(), blocks, strict=False):
        key = f"machine-{machine % machines:02d}".encode()
        fails = key == FAULTY and cooling_fails(machine * rows, fault_after)
        block = without_cooling(plain) if fails else plain
        if format == "packed":
            yield [Message(key, block.astype("<f4").tobytes())]
        elif format == "otlp":
            yield [Message(key, _otlp(key.decode(), row)) for row in block.tolist()]
        else:
            numbers = block.round(3).tolist()
            yield [
                Message(key, json.dumps(dict(zip(FEATURES, row, strict=True))).encode())
                for row in numbers
            ]


def _otlp(host: str, row: Sequence[float]) -> bytes:
    """A scrape of a host: a gauge for each feature."""
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
    from opentelemetry.proto.metrics.v1.metrics_pb2 import Gauge, MetricsData, NumberDataPoint

    data, now = MetricsData(), time.time_ns()
    resource = data.resource_metrics.add()
    name = KeyValue(key="host.name", value=AnyValue(string_value=host))
    resource.resource.attributes.append(name)
    metrics = resource.scope_metrics.add().metrics
    for feature, value in zip(FEATURES, row, strict=True):
        point = NumberDataPoint(time_unix_nano=now, as_double=value)
        metrics.add(name=feature, gauge=Gauge(data_points=[point]))
    return bytes(data.SerializeToString())


def ensure_topic(
    cluster: Cluster, topic: str, partitions: int = 4, *, broker_time: bool = False
) -> None:
    """Create the topic if it does not exist; `broker_time` lets brokers set the times in it."""
    if cluster.topic(topic) is None:
        configs = {**RETENTION, **(BROKER_TIME if broker_time else {})}
        cluster.create_topic(topic, TopicInfo(partitions, configs), -1)


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
    """Send `rate` records per second until `stop`; return how many were sent.

    If the brokers go away, wait for them; records that fell due in the meantime are left out.
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
                tell(f"sending failed, trying again ({error})")
                pause = 1.0
            paid_until += due * rows / rate
        stop.wait(max(0.0, now + pause - time.monotonic()))
    return sent


class GeneratorOptions(Options):
    """Options of the generator."""

    bootstrap_servers: str = "localhost:9092"
    """brokers to ask first"""
    topic: str = "telemetry"
    """topic, created if it does not exist"""
    partitions: int = Field(default=4, gt=0)
    """partitions of a new topic"""
    rate: float = Field(default=5000.0, gt=0)
    """records per second"""
    format: Format = "json"
    """format of the messages"""
    rows: int = Field(default=ROWS_PER_MESSAGE, gt=0)
    """records per packed message"""
    seconds: float | None = None
    """duration; 0 only creates the topic; without it, until Ctrl-C"""
    change_after: int | None = Field(default=None, gt=0)
    """records after which the fleet changes; without it, never"""
    fault_after: int | None = Field(default=None, gt=1)
    """records after which the cooling of machine-07 fails for a while; without it, never"""
    machines: int = Field(default=MACHINES, gt=0)
    """machines of the fleet, which take turns"""
    broker_time: bool = False
    """create the topic with LogAppendTime, for a service with privacy per subject"""
    seed: int | None = None
    """seed of the simulation, for the same records"""


def main(arguments: Sequence[str] | None = None) -> int:
    about = "Send telemetry of a simulated fleet to a Kafka topic."
    parser = ArgumentParser("python -m demo.generator", description=about)
    add_options(parser, GeneratorOptions)
    options = read_options(parser, GeneratorOptions, vars(parser.parse_args(arguments)))
    set_up_logs(sys.stderr)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        given = {"bootstrap_servers": options.bootstrap_servers, "input_topic": options.topic}
        config = kafka_config(load_part(ClusterSettings, given), "stream-dppca-generator")
        cluster, broker_time = KafkaCluster(config), options.broker_time
        ensure_topic(cluster, options.topic, options.partitions, broker_time=broker_time)
        if options.seconds == 0:
            _say(f"topic {options.topic} exists")
            return 0
        with closing(MessageProducer(config, options.topic)) as producer:
            sent = _send(options, producer.send, stop)
    except ServiceError as error:
        _say(f"{type(error).__name__}: {error}")
        return 1
    _say(f"{sent:,} records sent")
    return 0


def _send(options: GeneratorOptions, send: Send, stop: threading.Event) -> int:
    """Send records as the options say; return their number."""
    rows, rate, format = options.rows, options.rate, options.format
    if format == "otlp":  # a machine is a subject: each must come up in every round
        rows = 1
    elif format == "json":  # one message per record: as even a flow as the rate allows
        rows = max(1, min(64, int(rate * TICK_SECONDS)))
    more = {"packed": f" --rows-per-message {rows}", "otlp": " --subject host.name"}.get(format, "")
    _say(
        f"{rate:,.0f} records/s to {options.topic} at {options.bootstrap_servers}, for a service "
        f"with --format {service_format(format)}{more} --features {','.join(FEATURES)}"
    )
    records = messages(
        format, rows, options.seed, options.change_after, options.machines, options.fault_after
    )
    return produce(
        send, records, rows=rows, rate=rate, stop=stop, seconds=options.seconds, tell=_say
    )


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    raise SystemExit(main())

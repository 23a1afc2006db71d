"""10,000 broken messages among good ones, each with a secret in it.

A broken message is one null slot. Nothing of it appears anywhere: not in the output of the process,
not on its pages, not on its topics.
"""

from __future__ import annotations

import json
import random
import struct
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from ..support.harness import READERS, Fresh, Model, model, read_topic
from ..support.processes import PATIENT_LEAVING

BROKEN = 10_000
HUGE = 10 << 20
SECRET = f"SECRET-{uuid.uuid4().hex}"
#: A number that no honest output has by chance.
SECRET_NUMBER = 31337.4242421

#: Nobody takes over, and a busy machine must not end the session: a task is dropped by a message
#: or not at all.
ALONE = {"session_timeout_s": 600}

Break = Callable[[random.Random], bytes | None]


def good(rng: random.Random) -> bytes:
    row = {"cpu": rng.gauss(0, 3), "memory": rng.gauss(0, 1), "disk": {"read": rng.gauss(0, 0.3)}}
    return json.dumps({**row, "who": SECRET}).encode()


def with_cpu(value: str) -> bytes:
    return f'{{"cpu":{value},"memory":1,"disk":{{"read":2}},"who":"{SECRET}"}}'.encode()


BREAKS: dict[str, Break] = {
    "truncated": lambda r: good(r)[: r.randrange(1, 50)],
    "cut in the secret": lambda r: good(r)[:-20],
    "tombstone": lambda r: None,
    "empty": lambda r: b"",
    "null": lambda r: b"null",
    "a number": lambda r: str(SECRET_NUMBER).encode(),
    "a string": lambda r: json.dumps(SECRET).encode(),
    "an array": lambda r: json.dumps([SECRET_NUMBER] * r.randrange(6)).encode(),
    "an empty object": lambda r: b"{}",
    "a feature missing": lambda r: json.dumps({"cpu": SECRET_NUMBER, "who": SECRET}).encode(),
    "a string for a number": lambda r: with_cpu(f'"{SECRET}"'),
    "a number in a string": lambda r: with_cpu(f'"{SECRET_NUMBER}"'),
    "a bool": lambda r: with_cpu("true"),
    "a null for a number": lambda r: with_cpu("null"),
    "an object for a number": lambda r: with_cpu(f'{{"x":"{SECRET}"}}'),
    "NaN": lambda r: with_cpu("NaN"),
    "Infinity": lambda r: with_cpu("-Infinity"),
    "too large for a float": lambda r: with_cpu("1e999"),
    "beyond the cap": lambda r: with_cpu("1e300"),
    "endless digits": lambda r: with_cpu("9" * r.randrange(400, 5000)),
    "a number for an object": lambda r: json.dumps({"cpu": 1, "memory": 2, "disk": 3}).encode(),
    "deep arrays": lambda r: b"[" * r.randrange(1_000, 100_000),
    "deep objects": lambda r: b'{"a":' * r.randrange(1_000, 20_000),
    "depth in a feature": lambda r: with_cpu("[" * 50_000 + "]" * 50_000),
    "depth beside": lambda r: b'{"cpu":1,"memory":1,"disk":{"read":1},"x":' + b"[" * 50_000,
    "invalid UTF-8": lambda r: with_cpu("1").replace(b"SECRET", b"\xff\xfe\xc0SECRET"),
    "UTF-16": lambda r: good(r).decode().encode("utf-16"),
    "bytes": lambda r: SECRET.encode() + r.randbytes(r.randrange(200)),
    "two objects": lambda r: good(r) + good(r),
    "a lone surrogate": lambda r: with_cpu('"\\ud800"'),
    "zeros": lambda r: b"\x00" * r.randrange(1, 100),
    "too long": lambda r: b'{"who":"' + SECRET.encode() * 2500 + b'","cpu":1}',
}
#: These can be read, and are then beyond what the estimator takes: nulls all the same.
PACKED: dict[str, Break] = {
    "a wrong width": lambda r: r.randbytes(12 * r.randrange(1, 9) + r.randrange(1, 12)),
    "tombstone": lambda r: None,
    "empty": lambda r: b"",
    "NaN": lambda r: struct.pack("<3f", float("nan"), SECRET_NUMBER, 1.0),
    "infinity": lambda r: struct.pack("<3f", float("inf"), SECRET_NUMBER, 1.0),
    "the largest": lambda r: struct.pack("<3f", 3.4e38, -3.4e38, SECRET_NUMBER),
    "the smallest": lambda r: struct.pack("<3f", 1e-45, 1e-45, 1e-45),
    "text": lambda r: (SECRET + " " * 12)[: 36 + 12 - 36 % 12].encode(),
    "noise": lambda r: r.randbytes(12 * r.randrange(1, 9)),
}


def check_silence(m: Model, said: bytes) -> None:
    """Check that nothing of a message is in the output or on the topics."""
    number = f"{SECRET_NUMBER:.4f}".encode()
    packed = struct.pack("<f", SECRET_NUMBER)
    stored = m.outputs() + read_topic(m.servers, m.state_topic)
    kept = b"".join((x.key or b"") + (x.value or b"") + repr(x.headers).encode() for x in stored)
    for planted in (SECRET.encode(), SECRET[7:19].encode(), number, packed):
        assert planted not in said and planted not in kept


def run_to_the_end(m: Model, batches: int) -> bytes:
    """The output of the process while it reads all messages."""
    instance = m.start(**PATIENT_LEAVING)
    m.finish(instance)
    pages = [instance.get(path) for path in ("/metrics", "/component", "/readyz", "/livez", "/x")]
    slots = instance.metric("dppca_slots_total")
    assert slots == batches * m.batch
    assert not instance.saw("task_dropped"), instance.text
    assert instance.leave() == 0
    assert m.check() == batches
    return instance.text.encode() + b"".join(body for _, body in pages)


@pytest.mark.parametrize("reader", READERS)
def test_broken_json(servers: str, fresh_name: Fresh, reader: str) -> None:
    rng = random.Random(5)
    large = {"max.message.bytes": str(32 << 20)}
    settings = {
        "batch": 1000,
        "max_message_bytes": 100_000,
        "max_poll_records": 500,
        "reader": reader,
        **ALONE,
    }
    with model(servers, fresh_name("broken"), topic_configs=large, **settings) as m:
        kinds = list(BREAKS)
        for i in range(BROKEN):
            m.send(BREAKS[kinds[i % len(kinds)]](rng), headers=[("who", SECRET.encode())])
            if i % 4 == 0:
                m.send(good(rng))
            if i % 4000 == 2000:
                m.send((b'{"cpu":1,"who":"' + SECRET.encode()).ljust(HUGE, b"x"))
        m.producer.flush()
        check_silence(m, run_to_the_end(m, m.full_batches()))


def test_broken_packed(servers: str, fresh_name: Fresh) -> None:
    """Bad messages take as many slots as good ones, whatever their length."""
    rng = random.Random(6)
    settings = {
        "batch": 500,
        "format": "float32",
        "partitions": 2,
        "max_poll_records": 500,
        "rows_per_message": 4,
        **ALONE,
    }
    with model(servers, fresh_name("broken"), **settings) as m:
        kinds = list(PACKED)
        for i in range(3000):
            m.send(PACKED[kinds[i % len(kinds)]](rng))
            if i % 3 == 0:
                m.produce_packed(1)
        m.producer.flush()
        check_silence(m, run_to_the_end(m, m.full_batches()))


class NotUtf8(str):
    """A header's name that is not UTF-8: brokers accept it, and some clients cannot read it."""

    def encode(self, *_: Any) -> bytes:  # type: ignore[override]
        return b"\xff\xfe" + SECRET.encode()


@pytest.mark.parametrize("placed", ["first", "among others"])
def test_a_header_that_is_no_text(servers: str, fresh_name: Fresh, placed: str) -> None:
    with model(servers, fresh_name("header"), **ALONE) as m:
        m.produce(0 if placed == "first" else 30)
        m.send(good(random.Random(0)), headers=[(NotUtf8("x"), SECRET.encode())])
        m.produce(2 * m.batch)
        check_silence(m, run_to_the_end(m, 2))

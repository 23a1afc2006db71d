"""Warnings before anything goes wrong: samples, stored states, batches without a result."""

from __future__ import annotations

import base64
import json
import logging
import struct
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2

from consumers import cli
from consumers.errors import StateRefused
from consumers.events import set_up_logs
from consumers.messages.recipe import MessageRecipe
from consumers.messages.sample import Described, describe_sample
from consumers.protocols import RegisteredSchema
from consumers.service import loop
from consumers.service.stored import other_models
from stream_dppca import DPPCA, NothingLearnedWarning
from tests.consumers.otlp import message, recorded, resource
from tests.support.memory import MemoryBroker

from ..support.processes import wait_for
from .helpers import as_json, rows
from .test_cli import on
from .test_registered import Schemas, avro, framed
from .test_service import BATCH, feed, log_of, running, settings
from .test_watch import fleet

MODEL = [
    "--features",
    "cpu,memory,disk.read",
    "--epsilon",
    "8",
    "--delta",
    "1e-3",
    "--batch-size",
    str(BATCH),
    "--center",
    "none",
    "--scales",
    "none",
    "--input-topic",
    "in",
    "--model",
    "m",
]


# Samples


def described(
    values: Any, names: Any, format: Any, registry: Any = None, keys: Any = (), **more: Any
) -> Described:
    recipe = MessageRecipe(format, tuple(names), more.pop("max_bytes", 1 << 20), **more)
    if format in ("float32", "float64"):
        recipe = replace(recipe, rows_per_message=recipe.rows_per_message or 1)
    return describe_sample(values, recipe, registry, keys)


def sample(*values: bytes | None, format: Any = "json", **more: Any) -> str:
    names = ("cpu", "memory", "disk.read")
    return "\n".join(described(values, names, format, **more).lines)


def test_a_mistyped_feature_is_found() -> None:
    good = as_json((1, 2, 3))
    assert sample(good, good) == "sample: 2 of 2 messages have all features"
    text = sample(*[good.replace(b"memory", b"memroy")] * 3)
    assert "0 of 3 messages have" in text
    assert "memory: a number in 0 of 3 messages; did you mean memroy?" in text
    assert "keys in the messages: cpu (number), memroy (number), disk.read (number), x (" in text
    text = sample(good, b"[]", None, b'{"cpu": "high", "memory": 1, "disk": 2}')
    assert "1 of 4 messages" in text and "2 of 4 are not JSON objects" in text
    assert "cpu: a number in 1 of 4 messages" in text and "cpu (text)" in text
    assert "disk.read: a number in 1 of 4 messages" in text and "disk (number)" in text
    text = sample(b'{"cpu": 1, "memory": 2, "disk": {"read": [3, 4], "write": []}}')
    assert "disk.read: a number in 0 of 1 messages; did you mean disk.read[0]?" in text
    assert "disk.read[0] (array), disk.write (array)" in text
    assert sample() == "sample: the topic holds no messages yet"


def test_packed_rows_of_the_wrong_width_are_found() -> None:
    def packed(*shape: int) -> bytes:
        return np.ones(shape, dtype="<f4").tobytes()

    text = sample(
        packed(2, 3), packed(2, 4), packed(5, 3), b"x", format="float32", rows_per_message=2
    )
    assert "1 of 4 messages" in text and "must have 24 bytes" in text
    assert all(f"1 of 4 have {size} bytes" in text for size in (1, 24, 32, 60))
    text = sample(b"[1,2,3]", b"[1,2]", b"{}", format="json-array")
    assert "must have 3 values" in text
    assert "1 of 3 have 2 values" in text and "1 of 3 have no JSON array" in text


def registered(format: str) -> tuple[Schemas, bytes]:
    """A schema of cpu, memory and disk.read, and a message of it."""
    if format == "avro":
        number = {"type": ["null", "double"]}
        disk = {"type": "record", "name": "D", "fields": [{"name": "read", **number}]}
        fields = [
            {"name": "cpu", **number},
            {"name": "memory", **number},
            {"name": "disk", "type": disk},
        ]
        schema = {"type": "record", "name": "R", "fields": fields}
        message = avro(schema, {"cpu": 1.0, "memory": 2.0, "disk": {"read": 3.0}})
        return Schemas({7: RegisteredSchema("avro", json.dumps(schema))}), framed(7, message)
    file = descriptor_pb2.FileDescriptorProto(name="f.proto", syntax="proto3")
    other = file.message_type.add(name="Other")
    other.field.add(name="elsewhere", number=1, type=1, label=1)
    record = file.message_type.add(name="R")
    for i, name in enumerate(("cpu", "memory")):
        record.field.add(name=name, number=i + 1, type=1, label=1)
    disk_type = record.nested_type.add(name="D")
    disk_type.field.add(name="read", number=1, type=1, label=1)
    # A type that holds itself has endlessly many names.
    disk_type.field.add(name="inner", number=2, type=11, label=1, type_name=".R.D")
    record.field.add(name="disk", number=3, type=11, label=1, type_name=".R.D")
    text = base64.b64encode(file.SerializeToString()).decode()
    numbers = [bytes([tag]) + struct.pack("<d", value) for tag, value in ((9, 1), (17, 2), (9, 3))]
    body = numbers[0] + numbers[1] + b"\x1a" + bytes([len(numbers[2])]) + numbers[2]
    # The second type of the file: one number, 1 in zigzag.
    known = Schemas({7: RegisteredSchema("protobuf", text)})
    return known, framed(7, b"\x02\x02" + body)


@pytest.mark.parametrize("format", ["avro", "protobuf"])
def test_a_mistyped_field_of_a_registered_schema_is_found(format: Any) -> None:
    known, value = registered(format)

    def text_of(*features: str, values: Any = (value,) * 3) -> str:
        return "\n".join(described(values, features, format, registry=known).lines)

    whole = "sample: 3 of 3 messages have all features"
    assert text_of("cpu", "memory", "disk.read") == whole
    said = text_of("cpu", "memroy", "disk.read")
    assert "0 of 3 messages" in said and "memroy: a number in 0 of 3 messages" in said
    assert "cpu:" not in said and "disk.read:" not in said
    said = text_of("cpu", values=(value, framed(8, value[5:]), b"x"))
    assert "1 of 3 messages have all features" in said
    assert "1 of 3 name a schema that the registry does not have" in said
    assert "1 of 3 do not begin with the number of a schema" in said
    other: Any = "protobuf" if format == "avro" else "avro"
    said = "\n".join(described([value], ["cpu"], other, registry=known).lines)
    assert f"1 of 1 have a schema of {format}, not of {other}" in said


def test_another_format_is_recognised() -> None:
    """The commonest mistake with a first topic: the format is not set."""
    _, value = registered("avro")
    assert "set format=avro or format=protobuf schema_registry_url=" in sample(value, value)
    assert "set format=avro or format=protobuf" in sample(value, format="json-array")
    good = as_json((1, 2, 3))
    assert "these are JSON objects: set format=json" in sample(good, format="json-array")
    assert "these are JSON objects" in sample(good, format="float32", rows_per_message=1)
    assert "these are JSON arrays: set format=json-array" in sample(b"[1, 2, 3]")
    # Messages that have the format, or differ among themselves, get no such advice.
    for other in (b'{"x": 1}', b"12345"):
        assert "set format" not in sample(good, other) + sample(other)


def test_a_sample_says_whether_subjects_are_named() -> None:
    def text_of(*values: bytes, subject: str, keys: Any = ()) -> tuple[str, bool]:
        names = ("cpu", "memory", "disk.read")
        found = described(values, names, "json", subject=subject, keys=keys)
        return "\n".join(found.lines), found.fits

    row = as_json((1, 2, 3))
    named = [row[:-1] + b', "device": {"id": %d}}' % number for number in (1, 2, 2)]
    assert text_of(*named, subject="device.id") == (
        "sample: 3 of 3 messages have all features\n"
        "  subject device.id: in every message; 2 different in 3 records",
        True,
    )
    said, fits = text_of(*named, row, subject="device.id")
    assert "missing or not usable in 1 of 4 records" in said and not fits
    said, fits = text_of(*named, subject="device_id")
    assert said.endswith("in 3 of 3 records, which would be ignored; did you mean device.id?")
    said, fits = text_of(*named, subject="@key", keys=[b"a", b"a", None])
    assert "subject @key: missing or not usable in 1 of 3 records" in said and not fits
    assert text_of(*named, subject="@key", keys=[b"a", b"b", b" a"])[1]


def test_a_sample_says_nothing_of_values() -> None:
    values = [b'{"cpu": 98765.4, "memory": "secret", "other": "secret"}']
    named = [b'{"cpu": 98765.4, "other": "secret"}']
    text = sample(*values) + sample(*named, subject="other")
    assert "other: in every message" in text and "98765" not in text and "secret" not in text


@pytest.mark.parametrize("terminal", [True, False])
def test_a_sample_is_for_a_terminal_only(
    terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = MemoryBroker()
    broker.create("in", 2)
    for i, row in enumerate(rows(50)):
        broker.produce("in", as_json(row), i % 2)
    on(broker, monkeypatch)
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: terminal)
    code = cli.main(["check-config", *MODEL, "--sample", "20"])
    shown = capsys.readouterr()
    assert code == (0 if terminal else 78)
    assert ("20 of 20 messages have all features" in shown.out) == terminal
    assert ("--sample needs a terminal" in shown.err) == (not terminal)
    if terminal:
        assert shown.out.splitlines()[-1] == "the settings are fine"
        mistyped = [*MODEL, "--features", "cpu,memroy,disk.read"]
        assert cli.main(["check-config", *mistyped, "--sample", "20"]) == 1
        said = capsys.readouterr().out
        assert "did you mean memory?" in said
        assert said.splitlines()[-1].startswith("the settings are fine, but NO MESSAGE FITS THEM")
        broker.produce("in", b"{}", 0)
        assert cli.main(["check-config", *MODEL, "--sample", "20"]) == 0
        said = capsys.readouterr().out
        assert said.splitlines()[-1].startswith("the settings are fine, but not every message fits")


# Stored states


@contextmanager
def learned() -> Iterator[MemoryBroker]:
    """A model with one batch, whose service runs."""
    broker, s = MemoryBroker(), settings()
    broker.create("in", 1)
    feed(broker, BATCH)
    with running(broker, s) as service:
        wait_for("a batch", lambda: service.metrics.batches._value.get() == 1)
        yield broker


def test_settings_that_differ_from_the_stored_ones_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with learned() as broker:
        on(broker, monkeypatch)
        assert cli.main(["check-config", *MODEL]) == 0
        assert "fit the stored model, at batch 1" in capsys.readouterr().out
        for change, named in (
            (["--epsilon", "2"], "config.epsilon"),
            (["--features", "cpu,memory,other"], "config.features"),
            (["--input-topic", "in2"], "input 'in'"),
        ):
            if change[0] == "--input-topic":
                broker.create("in2", 1)
            assert cli.main(["check-config", *MODEL, *change]) == 65
            said = capsys.readouterr()
            assert named in said.err and "start='latest'" in said.err
            assert "the settings are fine" not in said.out


def test_a_standby_with_other_settings_is_refused_when_it_joins() -> None:
    with learned() as broker:
        log = log_of(broker, settings())
        before = log.tail(settings().state_topic)
        refused = pytest.raises(StateRefused, match=r"config\.epsilon")
        with refused, running(broker, settings(epsilon=2.0)) as standby:
            wait_for("the end", lambda: standby.ready()[1] == "leaving")
        assert log.tail(settings().state_topic) == before
        with running(broker, settings()) as standby:
            wait_for("a standby", lambda: standby.ready() == (True, "standing by"))


def test_a_new_model_on_records_that_were_used_is_warned_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with learned() as broker:
        on(broker, monkeypatch)
        other = [*MODEL[:-1], "another"]
        broker.topics["in"].configs["message.timestamp.type"] = "LogAppendTime"
        rounds = ["--subject", "@key", "--round", "1h", "--places", "100"]
        for how in (other, [*other, "--start", "latest"], [*other[:6], *other[8:], *rounds]):
            assert cli.main(["check-config", *how]) == 0
            told = capsys.readouterr().err
            assert "has been read by stream-dppca.m: " in told and "epsilon of both" in told
        assert cli.main(["check-config", *MODEL]) == 0
        assert "has been read" not in capsys.readouterr().err
        set_up_logs(sys.stdout)
        for start in ("earliest", "latest"):
            with running(broker, settings(model=f"another-{start}", start=start)) as service:
                wait_for("it to work", lambda: service.ready()[1].startswith("working"))
            events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
            said = [e for e in events if e["event"] == "records_used_before"]
            assert len(said) == 1 and said[0]["groups"][-1] == "stream-dppca.m"
            assert "start=latest" in said[0]["advice"]


def test_groups_that_score_are_not_models() -> None:
    """They learn nothing. A model may be called so, too: then it has no model of the other name."""
    read = [
        "other",
        "stream-dppca.m",
        "stream-dppca.m.scores",
        "stream-dppca.new.scores",
        "stream-dppca.x.scores",
    ]
    cluster: Any = SimpleNamespace(groups_of=lambda topic: read)
    found = other_models(cluster, settings(model="new"))
    assert found == ["stream-dppca.m", "stream-dppca.x.scores"]


def test_settings_that_are_seldom_meant(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["check-config", "--offline", *MODEL]) == 0
    assert "warning" not in capsys.readouterr().err
    loose = ["--epsilon", "50", "--delta", "0.1"]
    assert cli.main(["check-config", "--offline", *MODEL, *loose]) == 0
    said = capsys.readouterr().err
    assert "epsilon = 50 promises next to nothing" in said and "delta = 0.1 is above" in said


def test_scales_by_name_are_those_of_the_features(capsys: pytest.CaptureFixture[str]) -> None:
    def check(scales: str) -> tuple[int, str]:
        arguments = [
            *MODEL,
            "--center",
            "mean",
            "--batch-size",
            "3000",
            "--delta",
            "1e-6",
            "--scales",
            scales,
        ]
        return cli.main(["check-config", "--offline", *arguments]), capsys.readouterr().err

    assert check('{"cpu": 10, "memory": 5, "disk.read": 1e6}') == (0, "")
    code, said = check('{"cpu": 10, "memroy": 5}')
    assert code == 78 and said.startswith("`scales` must be ")
    found = "{'missing': ['memory', 'disk.read'], 'others': ['memroy']}"
    assert said.endswith(f"each of the 3 features, in order or by name. Found {found}.\n")
    code, said = check('{"cpu": 10, "memory": 5, "disk.read": 1e6, "other": 1}')
    assert code == 78 and said.endswith(" Found {'missing': [], 'others': ['other']}.\n")
    assert cli.main(["check-config", "--offline", *MODEL, "--features", "a,b,a"]) == 78
    assert "feature 'a' is there twice" in capsys.readouterr().err


# Batches without a result


@pytest.mark.parametrize("learns", [{}, {"center": "mean", "scales": "learn", "epsilon": 20.0}])
def test_batches_that_learned_nothing_are_seen(learns: dict[str, Any]) -> None:
    """A typo in a feature makes every record a null. Noise may look like something; with this seed
    it does not in the last batch."""
    names = ("cpu", "memroy", "disk.read")
    broker, s = MemoryBroker(), settings(features=names, seed=2, **learns)
    broker.create("in", 1)
    feed(broker, 4 * BATCH)
    with running(broker, s) as service:
        wait_for("batches", lambda: service.metrics.batches._value.get() == 4)
        count = service.metrics.registry.get_sample_value("dppca_batches_without_result_total")
        assert count and count >= 1
        ready, words = service.ready()
        assert ready and words.startswith("working; nothing was learned from the last ")
        assert words.endswith("check the feature names; `inspect` says why")
        assert service.facts()["note"] in words


def test_brokers_that_do_not_answer_are_mentioned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SILENT_SECONDS", 0.5)
    broker = MemoryBroker()
    broker.create("in", 1)
    thaw = threading.Event()
    with running(broker, settings()) as service:
        wait_for("a task", lambda: service.ready() == (True, "working"))
        offsets = service._task.input.planner._offsets
        ends, bounds = offsets.ends, offsets.bounds
        monkeypatch.setattr(offsets, "ends", lambda of: thaw.wait() and ends(of))
        monkeypatch.setattr(offsets, "bounds", lambda of: thaw.wait() and bounds(of))
        try:
            wait_for("a word about it", lambda: "have not answered for" in service.ready()[1])
        finally:
            thaw.set()
        wait_for("them again", lambda: service.ready() == (True, "working"))


def test_words_about_batches_that_learned_nothing() -> None:
    from consumers.model.describe import status_in_words

    learned = fleet(3)[-1]
    for status, reason in (("nothing_learned", "why"), ("skipped", "why")):
        release = learned.model_copy(update={"status": status, "reason": reason})
        assert status_in_words(release).endswith("why; check the feature names")


@pytest.mark.parametrize("known", [{"center": "none", "scales": None}, {}])
def test_python_warns_once_that_nothing_is_learned(known: dict[str, Any]) -> None:
    model = DPPCA(features=("a", "b"), epsilon=8.0, delta=1e-3, batch_size=2000, seed=1, **known)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(6 * 2000):
            model.learn_one({"c": 1.0})
    about = [w for w in said if issubclass(w.category, NothingLearnedWarning)]
    assert len(about) == 1 and "check the feature names" in str(about[0].message)


# Logs


def test_logs_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs(sys.stdout, "text", model="m")
    from consumers.events import log_event

    log_event("released", batch=3, status="learned", reason=None, drift=False)
    log_event("task_dropped", level="warning", error="Fenced")
    plain, warned = capsys.readouterr().out.splitlines()
    assert plain.endswith("Z released: batch=3 status=learned")
    assert warned.endswith("WARNING task dropped: error=Fenced")
    set_up_logs(sys.stdout, "auto")  # not a terminal
    log_event("x")
    assert json.loads(capsys.readouterr().out)["event"] == "x"


def test_what_the_client_repeats_is_summarised(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs(sys.stdout)
    client = logging.getLogger("kafka.net.manager")

    def say(text: str, at: float) -> None:
        record = client.makeRecord(client.name, logging.WARNING, "", 0, text, (), None)
        record.created = at
        client.handle(record)

    for i in range(100):
        say(f"Connection failed: KafkaConnectionError: {i} ECONNREFUSED", 1000.0 + i / 10)
        say(f"something else {i}", 1000.0 + i / 10)
        say(f"Task <x at {i}> ran for 0.{i}s (>0.100s threshold).", 1000.0 + i / 10)
        say(f"Bootstrap bootstrap-0 not ready; waiting 0.{i} secs", 1000.0 + i / 10)
    say("Connection failed: KafkaConnectionError: 111 ECONNREFUSED", 1040.0)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in lines] == [
        "waiting_for_brokers",
        "client",
        "waiting_for_brokers",
    ]
    assert lines[0]["reason"] == "0 ECONNREFUSED" and "repeated" not in lines[0]
    assert lines[2]["repeated"] == 199
    assert {line["level"] for line in lines} == {"warning"}


# Telemetry


def recognised(*values: bytes, format: Any = "json", **more: Any) -> str:
    return "\n".join(described(values, ["x"], format, **more).lines)


@pytest.mark.parametrize(
    ("value", "settings"),
    [
        (
            {"host": "a", "metric": "cpu", "value": 1.2, "ts": 3},
            "format=long long_fields=name=metric,value=value,time=ts subject=host",
        ),
        (
            [{"host": "a", "metric": "cpu", "value": 1.2}],
            "format=long long_fields=name=metric,value=value subject=host",
        ),
        (
            {
                "name": "cpu",
                "timestamp": "1970-01-01T00:00:01Z",
                "value": "9.5",
                "labels": {"instance": "h:1", "mode": "idle"},
            },
            "format=long long_fields=name=name,value=value,time=timestamp,labels=labels "
            "text_values=true subject=labels.instance",
        ),
        (
            {
                "metrics": [
                    {"name": "cpu", "tags": {"host": "a"}, "fields": {"x": 1}, "timestamp": 1}
                ]
            },
            "format=long long_fields=name=name,value=fields,time=timestamp,labels=tags "
            "subject=tags.host",
        ),
    ],
)
def test_one_metric_per_message_is_recognised(value: Any, settings: str) -> None:
    sent = json.dumps(value).encode()
    for format in ("json", "json-array", "otlp", "otlp-json"):
        said = recognised(sent, sent, format=format)
        assert settings in said, said
        assert "    'cpu" in said


@pytest.mark.parametrize(
    ("topic", "format"),
    [("whole_proto", "otlp"), ("split_proto", "otlp"), ("whole_json", "otlp-json")],
)
def test_open_telemetry_is_recognised(topic: str, format: str) -> None:
    values, keys = recorded(topic)
    for other in {"json", "json-array", "float32", "otlp", "otlp-json", "long"} - {format}:
        said = recognised(*values, format=other)
        assert f"set format={format} subject=host.name" in said, said
    said = recognised(*values, format=format, subject="host.name", keys=keys)
    assert "set format" not in said
    assert "    'rate(system.network.io{direction=\"receive\"})',  # By" in said
    assert "    'system.memory.usage{state=\"used\"}',  # By" in said
    assert "x: in 0 of 0" in said


def test_a_sample_of_points_says_which_features_are_missing() -> None:
    values, keys = recorded("whole_proto")
    features = ("system.memory.usage", "system.memory.usag", "rate(system.cpu.time)")
    found = described(values[:1], features, "otlp", keys=keys[:1], subject="host.name")
    said = "\n".join(found.lines)
    assert found.any_fits and not found.fits
    assert "sample: 1 subjects (host.name) in the messages; 0 have all features" in said
    assert "system.memory.usag: in 0 of 1; did you mean system.memory.usage?" in said
    assert "rate(system.cpu.time): in 0 of 1; a rate needs two points of a host" in said
    found = described(values, features[:1], "otlp", keys=keys, subject="host.name")
    assert found.fits


def test_summaries_are_left_out() -> None:
    kinds = {"name": "old", "kind": "summary", "value": (1.0, 2)}, {"name": "m", "value": 1}
    said = recognised(message(resource({"host.name": "a"}, *kinds)), format="otlp")
    assert "    'm'," in said and "old" not in said


def test_framed_json_and_arrays_of_objects_are_recognised() -> None:
    framed = b"\0\0\0\0\7" + b'{"x": 1}'
    assert "1 of 1 messages have all features" in recognised(framed)
    assert "set format=json" in recognised(framed, format="json-array")
    assert "arrays of objects" in recognised(b'[{"x": 1}]')
    assert "set format=json-array" in recognised(b"[1, 2]")


def test_a_sample_of_shared_messages_says_how_many_groups_there_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = MemoryBroker()
    broker.create("in", 1)
    hosts = [resource({"host.name": f"h{i}"}, {"name": "m", "value": i}) for i in range(3)]
    for _ in range(4):
        broker.produce("in", message(*hosts), 0)
    on(broker, monkeypatch)
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    given = [*MODEL, "--format", "otlp", "--features", "m", "--sample", "4"]
    assert cli.main(["check-config", *given]) == 0
    shown = capsys.readouterr()
    assert "a message holds up to 3 groups: set rows_per_message=3" in shown.out
    assert "come and go in shared messages need unit=subject" in shown.err
    assert cli.main(["check-config", *given, "--rows-per-message", "2"]) == 0
    assert cli.main(["check-config", *given, "--features", "other"]) == 1

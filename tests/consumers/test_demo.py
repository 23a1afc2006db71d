"""`make run`: the generator's records, the truth, what is said, and the whole on a real broker."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from consumers.cli.screen import screen
from consumers.errors import ClusterError
from consumers.model.releases import PublishedRelease, release_message
from consumers.model.uncertainty import angle
from consumers.protocols import Message
from consumers.settings import load_settings
from consumers.web.tracker import Tracker
from demo import entry as demo
from demo import generator
from demo.broker import __main__ as broker_command
from demo.broker.base import BrokerUnavailable
from demo.broker.local import ADDRESS_VARIABLE, LocalBroker
from demo.deployments import Deployment
from demo.otel import ensure_collector
from demo.show import NO_RELEASE, NOTHING_LEARNED, _facts, _flags, perform, show
from demo.telemetry import DAY, FEATURES, telemetry, true_direction
from demo.truth import Simulated
from stream_dppca import PrivacyStatement

from ..support.memory import MemoryBroker, MemoryCluster
from ..support.processes import PATIENCE_SECONDS
from .helpers import make_codec

TRUE_DIRECTION = true_direction(changed=False)
PROMISE = PrivacyStatement(epsilon=1, delta=1e-6, method="adaptive", private=True)

# The generator


def test_the_service_reads_what_the_generator_sends() -> None:
    records = list(islice(generator.messages(seed=1), 40 * 64))
    rows = make_codec("json", FEATURES, 1 << 20).decode([record.value for record in records])
    assert rows.shape == (40 * 64, len(FEATURES))
    assert np.isfinite(rows).all()
    assert np.abs(rows.mean(axis=0)).max() > 1e7 and np.abs(rows.mean(axis=0)).min() < 100
    assert len({record.key for record in records}) == 64


@pytest.mark.parametrize("changed", [False, True])
def test_the_true_direction_is_that_of_the_records(changed: bool) -> None:
    blocks = islice(telemetry(3, DAY, 3 * DAY), 3 * changed, 3 * changed + 3)
    correlation = np.corrcoef(np.concatenate(list(blocks)).T)
    found = np.linalg.eigh(correlation)[1][:, -1]
    assert angle(found, true_direction(changed)) < 1
    assert angle(true_direction(False), true_direction(True)) > 20


class Clock(threading.Event):
    """A clock that moves when somebody waits."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wait(self, timeout: float | None = None) -> bool:
        self.now += timeout or 0.0
        return self.is_set()


@pytest.mark.parametrize("rate", [20.0, 5000.0])
def test_the_rate_is_kept_and_failures_are_got_over(
    rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(generator, "time", clock)
    sent: list[int] = []
    failures = [ClusterError("away")]

    def send(records: Any) -> None:
        if rate > 1000 and failures:
            raise failures.pop()
        sent.append(len(records))

    count = generator.produce(send, repeat(Message(b"", b"")), rate, clock, seconds=2.5)
    assert count == sum(sent)
    if rate < 1000:
        assert 2.4 * rate <= count <= 2.5 * rate
    else:  # records that could not be sent are left out
        assert 2.0 * rate <= count <= 2.4 * rate


def test_the_generator_stops_when_told() -> None:
    stop = threading.Event()
    stop.set()
    assert generator.produce(lambda _: None, iter([]), 1.0, stop) == 0
    with pytest.raises(SystemExit):
        generator.main(["--rate", "0"])


def test_every_device_is_in_every_round() -> None:
    """With a device's messages in a row, a round held 125 of them: too few to learn anything."""
    options = demo.DemoOptions(unit="subject")
    settings = load_settings(demo.service_flags(options, "localhost:9092"))
    per_round = int(options.rate * settings.rounds().length_ms / 1000)
    sent = islice(generator.messages(seed=1, machines=demo.DEVICES), per_round)
    assert len({message.key for message in sent}) == demo.DEVICES <= (settings.places or 0)
    words = demo.sender_command(options, "localhost:9092", "telemetry")
    assert words[words.index("--machines") + 1] == str(demo.DEVICES)


def test_the_cooling_of_one_machine_fails_for_a_while() -> None:
    found = [generator.messages(seed=1, fault_after=n) for n in (128, None)]
    pairs = zip(*(islice(one, 3 * 128) for one in found), strict=True)
    hot = [i for i, (with_fault, without) in enumerate(pairs) if with_fault != without]
    # After two turns of 64 machines, in the third, and again after two more.
    assert hot == [2 * 64 + 7, 5 * 64 + 7]
    simulated = Simulated(None, 3000)
    for batch in range(1, 7):
        simulated.see(release(batch, TRUE_DIRECTION))
        assert ("the fault" in dict(simulated.facts())) == (batch == 4)
    assert simulated.fault_in_words() == "the simulator stopped the fan of machine-07 at batch 4"


def test_flags_of_score() -> None:
    alarm = {
        "key": "machine-07",
        "beyond": 300,
        "seen": 301,
        "contributions": [["fan_rpm", -95.0], ["temperature_c", 58.1]],
    }
    said: dict[str, Any] = {"share": None, "rate": 0.0, "alarms": []}
    deployment = Fake(pages={"/facts": lambda: json.dumps({"beyond": said})})
    assert list(_flags(deployment)) == []
    said |= {"share": 0.0351, "rate": 0.02, "alarms": [alarm]}
    (_, share), (name, flag) = _flags(deployment)
    assert share == "3.5% of the records are beyond a limit · NOT PRIVATE · http://127.0.0.1:8323/"
    wanted = "machine-07: 300 of 301 records beyond a limit, by fan_rpm -95, temperature_c +58"
    assert (name, flag) == ("FLAG", wanted)
    assert list(_flags(Fake())) == []


# The truth


def release(batch: int, w: np.ndarray, **changes: Any) -> PublishedRelease:
    return PublishedRelease(
        status="learned",
        model="m",
        batch=batch,
        n_seen=1000 * batch,
        features=FEATURES,
        components=(tuple(w.tolist()),),
        spread=(3.0,),
        range=1.0,
        step=0.5,
        sigma=0.02,
        privacy=PROMISE,
        center=(50.0,) * len(FEATURES),
        scale=(2.0,) * len(FEATURES),
        mean=(0.0,) * len(FEATURES),
        deviation=(1.0,) * len(FEATURES),
    ).model_copy(update=changes)


def sample(n: int = 30) -> tuple[Tracker, Simulated]:
    """A model that comes closer to the truth. The fleet changes at batch 26, seen at batch 28."""
    simulated = Simulated(25_000)
    simulated.deployed = [("the broker", "at 127.0.0.1:12345"), ("pages", "http://127.0.0.1:8321/")]
    tracker = Tracker("m", simulated.see)
    rng = np.random.default_rng(0)
    for batch in range(1, n + 1):
        w = true_direction(batch >= 28) + rng.standard_normal(len(FEATURES)) * 0.1 / batch
        made = release(batch, w / np.linalg.norm(w), drift=batch == 28)
        assert tracker.add(release_message(made))
    return tracker, simulated


def drawn(tracker: Tracker, simulated: Simulated, width: int, height: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    points = tracker.history()[1].points
    console.print(screen(tracker.release, points, "why", 0.0, height, simulated))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("width, height", [(80, 24), (100, 40), (200, 60), (60, 18)])
def test_the_truth_is_shown_with_the_model(width: int, height: int) -> None:
    lines = drawn(*sample(), width, height)
    text = "\n".join(lines)
    assert len(lines) == height and {len(line) for line in lines} == {width}
    assert "over the whole stream" in " ".join(text.replace("│", " ").split())  # nothing is cut off
    assert len([line for line in lines if re.search(r"[+-]0\.\d{4} ", line)]) >= 3
    if height >= 40:
        assert all(name in text for name in ("12345", ":8321/"))
        assert re.search(r"26 .*the fleet changed", text)
        assert re.search(r"28 .*the stream changed", text)
        assert "the simulator changed it at batch 26; the model noticed at batch 28" in text
        assert re.search(r"the truth .* away .*[▁-█]┃[▁-█]", text)
    waiting = drawn(Tracker("m"), Simulated(None), width, height)
    assert len(waiting) == height and "waiting for the first release: why" in "".join(waiting)


def test_the_mark_of_a_change_stays() -> None:
    tracker, simulated = sample(49)
    assert "the simulator changed it at batch 26; " in "\n".join(drawn(tracker, simulated, 100, 40))
    tracker, simulated = sample(52)
    assert simulated.changes == [26, 51]
    said = "\n".join(drawn(tracker, simulated, 100, 40))
    assert "the simulator changed it at batch 51 " in said  # and the model has not noticed


def test_the_angle_to_the_truth() -> None:
    simulated = Simulated(2500)
    nothing = {"status": "nothing_learned", "components": ()}
    simulated.see(release(1, TRUE_DIRECTION, **nothing))
    assert simulated.first_s is None and not simulated.angles
    simulated.see(release(2, TRUE_DIRECTION))
    simulated.see(release(3, TRUE_DIRECTION))  # the fleet has changed, the model has not
    simulated.see(release(4, -true_direction(changed=True), drift=True))
    assert simulated.angles.keys() == {2, 3, 4} and simulated.angles[3] > 20
    assert simulated.angles[2] == pytest.approx(0, abs=1e-6) == simulated.angles[4]
    assert (simulated.changes, simulated.noticed, simulated.releases) == ([3], [4], 4)


def test_a_real_stream_has_no_truth_but_a_deployment() -> None:
    """What `make otel` shows on a terminal."""
    real = Simulated(None, known=False)
    real.deployed = list(_facts(Fake()))
    tracker = Tracker("m", real.see)
    few = {"features": ("cpu", "memory"), "components": ((0.6, 0.8),)}
    few |= dict.fromkeys(("center", "scale", "mean", "deviation"), (1.0, 1.0))
    assert tracker.add(release_message(release(1, TRUE_DIRECTION, **few)))
    assert real.first_s is not None and not real.angles
    text = "\n".join(drawn(tracker, real, 120, 40))
    assert "http://127.0.0.1:8321/" in text and " at localhost:9092" in text
    assert "truth" not in text


# The whole


class Fake(Deployment):
    """A deployment without processes, whose releases are made here."""

    def __init__(
        self,
        options: Mapping[str, Any] | None = None,
        releases: Sequence[PublishedRelease] = (),
        pages: Mapping[str, Callable[[], str]] | None = None,
        failure: str | None = None,
    ) -> None:
        self.flags = demo.service_flags(demo.DemoOptions(**(options or {})), "localhost:9092")
        self.settings = load_settings(self.flags)
        self.ports = {"service": 8321, "scorer": 8323}
        self._pages, self._failure = pages or {}, failure
        self._broker = MemoryBroker()
        self._broker.create(self.settings.output_topic, 1)
        for one in releases:
            made = one.model_copy(update={"model": self.settings.model})
            message = release_message(made)
            self._broker.produce(self.settings.output_topic, message.value, key=message.key)

    def cluster(self) -> Any:
        settings = self.settings
        return MemoryCluster(
            self._broker,
            group=settings.group,
            state_topic=settings.state_topic,
            input_topic=settings.input_topic,
            output_topic=settings.output_topic,
        )

    def get(self, part: str, path: str) -> str:
        return self._pages[path]() if path in self._pages else ""

    def failed(self) -> str | None:
        return self._failure

    def close(self) -> None:
        pass


def shown(deployment: Fake, releases: int | None = None, known: bool = True) -> tuple[int, str]:
    """The exit code, and what is said about a deployment."""
    console = Console(file=io.StringIO(), width=200)
    simulated = Simulated(2500, known=known)
    code = show(console, deployment, simulated, None if releases else 0.2, releases)
    return code, console.file.getvalue()  # type: ignore[attr-defined]


def test_what_is_said_at_the_end() -> None:
    made = [release(batch, true_direction(batch > 2), drift=batch == 4) for batch in range(1, 6)]
    code, said = shown(Fake({"epsilon": 2.0}, made), releases=5)
    assert code == 0
    assert "pages: http://127.0.0.1:8321/; broker: Apache Kafka " in said
    assert "5 releases; broker: Apache Kafka " in said
    assert "0.0° from the truth; the last one is 0.0° from the truth" in said
    assert "The fleet: the simulator changed it at batch 3; the model noticed at batch 4." in said
    assert "on your own cluster, with your own features: docs/service.md" in said


def test_nothing_is_said_that_counts_records_of_subjects() -> None:
    deployment = Fake({"unit": "subject"}, [release(1, TRUE_DIRECTION)])
    names = {name for name, _ in _facts(deployment)}
    assert "the stream" not in names and "the service" in names
    code, said = shown(deployment, releases=1)
    assert code == 0 and "In production, rounds last hours" in said
    assert "lag" not in said


def test_a_run_without_a_component_is_a_failure() -> None:
    code, said = shown(Fake())
    assert code == 1 and NO_RELEASE in said
    nothing = {"status": "nothing_learned", "components": (), "spread": ()}
    code, said = shown(Fake(releases=[release(1, TRUE_DIRECTION, **nothing)]), releases=1)
    assert code == 1 and NOTHING_LEARNED in said and NO_RELEASE not in said
    code, said = shown(Fake(), known=False)  # nothing is expected of a real stream
    assert code == 0 and NO_RELEASE not in said


def test_a_part_that_fails_ends_the_run() -> None:
    deployment = Fake(releases=[release(1, TRUE_DIRECTION)], failure="the sender ended with 3")
    console = Console(file=io.StringIO(), width=200)
    assert show(console, deployment, Simulated(None), None, None) == 1
    assert "the sender ended with 3" in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def no_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)


def test_settings_of_another_model_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPPCA_SEED", "1")
    monkeypatch.setenv("DPPCA_SASL_USERNAME", "somebody")
    assert perform(lambda *_: 0) == 0
    assert "DPPCA_SEED" not in os.environ and "DPPCA_SASL_USERNAME" in os.environ


def test_what_a_cluster_cannot_do_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        demo.main(["--engine", "spark", "--unit", "subject"])
    assert "--engine spark does not work with --unit subject" in capsys.readouterr().err


def test_a_collector_that_cannot_be_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = tmp_path / "go"
    go.write_text("#!/bin/sh\necho sumdb: 404 Not Found; exit 1\n")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(BrokerUnavailable, match=r"GOSUMDB=off.*\nsumdb: 404"):
        ensure_collector()


def test_a_machine_without_java(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    monkeypatch.setattr("demo.broker.jars._java_commands", lambda: iter(()))
    assert demo.main(["--releases", "1"]) == 1
    assert "a broker needs Java 17 or later, and there is none" in capsys.readouterr().out


def test_an_address_is_an_order(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ADDRESS_VARIABLE, "127.0.0.1:9")
    monkeypatch.setattr("consumers.cli.brokers.PATIENCE_SECONDS", 1.0)
    assert demo.main(["--seconds", "5"]) == 1
    said = capsys.readouterr().out
    assert "127.0.0.1:9: no broker answers" in said and "batch 1" not in said


def run_demo(broker: Any, *arguments: str) -> subprocess.Popen[str]:
    """The processes of `make run`."""
    environment = {**os.environ, ADDRESS_VARIABLE: broker.bootstrap_servers}
    return subprocess.Popen(
        [sys.executable, "-m", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )


@pytest.mark.broker
def test_on_a_real_broker(broker: Any) -> None:
    """The model finds the truth, and is ended as Ctrl-C does."""
    process = run_demo(broker, "--batch-size", "2000", "--epsilon", "4")
    try:
        lines = []
        for line in process.stdout or ():
            lines.append(line)
            if line.startswith("batch 8 "):
                break
        process.send_signal(signal.SIGINT)
        said = "".join(lines) + process.communicate(timeout=PATIENCE_SECONDS)[0]
        assert process.returncode == 0, said
        assert re.search(r"batch 1  published .*  status learned", said)
        assert float(re.findall(r"batch 8 .* ([\d.]+)° from the truth", said)[0]) < 30
        assert "(ε = 4) plus 1e-06 (δ), over the whole stream" in said
        assert "your cluster at" in said and "left on your cluster: telemetry-demo-" in said
    finally:
        process.kill()
        process.wait()


@pytest.mark.broker
@pytest.mark.slow
def test_privacy_per_device_on_a_real_broker(broker: Any) -> None:
    process = run_demo(broker, "--unit", "subject", "--releases", "3", "--epsilon", "4")
    said = process.communicate(timeout=PATIENCE_SECONDS)[0]
    assert process.returncode == 0, said
    assert "(ε = 4, δ = 1e-06)-differentially private for everything that one subject" in said
    assert "sends in any round of 2 seconds" in said
    assert len(re.findall(r"^batch \d+ ", said, re.MULTILINE)) == 3


def test_the_broker_of_a_command_that_has_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command says so and ends, rather than waiting for ever beside a broker that is gone."""
    tail = "; the end of its log:\nout of memory"
    monkeypatch.setattr(LocalBroker, "start", lambda self: None)
    monkeypatch.setattr(LocalBroker, "log_tail", lambda self: tail)
    assert broker_command.main(["run", "--port", "9"]) == 1
    said = capsys.readouterr()
    assert said.out == "127.0.0.1:9\n" and "the broker has ended; the end of its log" in said.err

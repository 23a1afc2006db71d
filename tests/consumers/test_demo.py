"""`make run`: the generator's records, the view, and the whole of it with and without a broker."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from itertools import islice
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from consumers.errors import ClusterError
from consumers.model.codecs import make_codec
from consumers.model.releases import Promise, ReleaseDocument, release_message
from consumers.protocols import Message
from demo import entry as demo
from demo import generator, history, view
from demo.broker import ADDRESS_VARIABLE, BrokerUnavailable
from demo.broker import __main__ as broker_command
from demo.broker.managed import ManagedBroker
from demo.telemetry import DAY, FEATURES, telemetry, true_direction
from stream_dppca.noise import SecureNoise

from ..processes import PATIENCE_SECONDS

TRUE_DIRECTION = true_direction(changed=False)
PROMISE = Promise(
    epsilon=1, delta=1e-6, adjacency="replace-one", unit="record", scope="whole stream",
    method="adaptive", private=True,
)  # fmt: skip

# The generator


@pytest.mark.parametrize("format", ["json", "packed"])
def test_the_service_reads_what_the_generator_sends(format: generator.Format) -> None:
    records = [r for batch in islice(generator.messages(format, 64, seed=1), 40) for r in batch]
    per_message = 64 if format == "packed" else 1
    codec = make_codec(generator.service_format(format), FEATURES, 1 << 20, True, per_message)
    rows = codec.decode([record.value for record in records])
    assert rows.shape == (40 * 64, len(FEATURES))
    assert np.isfinite(rows).all()
    assert np.abs(rows.mean(axis=0)).max() > 1e7 and np.abs(rows.mean(axis=0)).min() < 100
    assert len({record.key for record in records}) == 40


def test_both_formats_hold_the_same_records() -> None:
    [packed] = next(generator.messages("packed", 3, seed=5))
    objects = [json.loads(r.value) for r in next(generator.messages("json", 3, seed=5))]
    rows = np.frombuffer(packed.value, "<f4").reshape(3, -1)
    wanted = [[o[f] for f in FEATURES] for o in objects]
    np.testing.assert_allclose(rows, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("changed", [False, True])
def test_the_true_direction_is_that_of_the_records(changed: bool) -> None:
    blocks = islice(telemetry(3, DAY, 3 * DAY), 3 * changed, 3 * changed + 3)
    correlation = np.corrcoef(np.concatenate(list(blocks)).T)
    found = np.linalg.eigh(correlation)[1][:, -1]
    assert history.angle(found, true_direction(changed)) < 1
    assert history.angle(true_direction(False), true_direction(True)) > 20


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

    rows = 1 if rate < 100 else 50
    batches = iter(lambda: [Message(b"", b"")] * rows, None)
    count = generator.produce(send, batches, rows=rows, rate=rate, stop=clock, seconds=2.5)
    assert count == sum(sent)
    if rate < 1000:
        assert 2.4 * rate <= count <= 2.5 * rate
    else:  # records that could not be sent are left out
        assert 2.0 * rate <= count <= 2.4 * rate


def test_the_generator_stops_when_told() -> None:
    stop = threading.Event()
    stop.set()
    assert generator.produce(lambda _: None, iter([]), rows=1, rate=1.0, stop=stop) == 0
    with pytest.raises(SystemExit):
        generator.main(["--rate", "0"])


# The view


class Still:
    """A deployment in which nothing runs."""

    broker = "Apache Kafka 4.3.1 on the local JVM at 127.0.0.1:12345"
    engine = None

    def cluster(self) -> Any:
        raise NotImplementedError

    def ports(self) -> list[int]:
        return [8321]

    def failed(self) -> None:
        return None

    def tidy(self) -> None:
        pass

    def close(self) -> None:
        pass


def release(batch: int, w: np.ndarray, task: Any = 0, **changes: Any) -> bytes:
    made = ReleaseDocument(
        status="learned", model="m", task=task, shards=1, batch=batch, n_seen=1000 * batch,
        features=FEATURES,
        components=[{"loadings": dict(zip(FEATURES, w.tolist(), strict=True)), "spread": 3.0}],  # type: ignore[arg-type]
        range=1.0, step=0.5, sigma=0.02, skipped=False, reason=None,
        privacy=PROMISE, center=dict.fromkeys(FEATURES, 50.0), scale=dict.fromkeys(FEATURES, 2.0),
        mean=dict.fromkeys(FEATURES, 0.0), deviation=dict.fromkeys(FEATURES, 1.0),
    ).model_copy(update=changes)  # fmt: skip
    return release_message(made).value


def sample_history(n: int = 30, sign: float = 1.0) -> history.History:
    known = history.History("0")
    rng = np.random.default_rng(0)
    for batch in range(1, n + 1):
        w = TRUE_DIRECTION + rng.standard_normal(len(FEATURES)) * 0.2 / batch
        assert known.add(release(batch, sign * w / np.linalg.norm(w), drift=batch == 20))
    return known


def warming_up(batch: int = 1) -> bytes:
    return release(
        batch, TRUE_DIRECTION, status="warming_up", components=(), warm_up_left=1, skipped=True,
        reason="warming up", center=None, scale=None, mean=None, deviation=None,
    )  # fmt: skip


def drawn(known: history.History, width: int, height: int) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, force_terminal=True, color_system=None)
    console.print(view.screen(known, Still(), width, height))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width, height", [(80, 24), (120, 40), (200, 60), (60, 18)])
def test_the_view_fits(width: int, height: int) -> None:
    lines = drawn(sample_history(), width, height)
    assert len(lines) == height
    assert {len(line) for line in lines} == {width}
    text = "\n".join(lines)
    assert "requests_per_s" in text and "batch 30" in text
    if height >= 24:
        assert all(name in text for name in (*FEATURES, "promise", "12345", ":8321/  /component"))
    if width >= 80:
        assert "…" not in text
        assert "What varies most: " in text and "±" in text and "rise and fall" in text
    known = history.History("0")
    known.add(warming_up())
    learning = drawn(known, width, height)
    assert len(learning) == height and {len(line) for line in learning} == {width}
    assert "warming up (batch 1 of 2)" in "".join(learning)
    waiting = drawn(history.History("0"), width, height)
    assert len(waiting) == height and "waiting for the first release" in "".join(waiting)


def test_bars_are_sorted_and_signed() -> None:
    w = np.linspace(-0.3, 0.9, len(FEATURES))
    w /= np.linalg.norm(w)
    known = history.History("0")
    known.add(release(1, w))
    assert known.current is not None
    lines = view.bars(known.current, TRUE_DIRECTION, 80, 12).plain.splitlines()
    shown = [float(re.findall(r"[+-]\d\.\d+", line)[0]) for line in lines]
    assert shown == sorted(shown, key=abs, reverse=True)
    assert min(shown) < 0 < max(shown)
    # All bars begin at one axis, to the left of it or to the right.
    left = [line.rindex("━") for line, x in zip(lines, shown, strict=True) if x < -0.1]
    right = [
        re.sub("┃", "━", line).index("━") for line, x in zip(lines, shown, strict=True) if x > 0.1
    ]
    assert max(left) < min(right)
    assert len(view.bars(known.current, TRUE_DIRECTION, 80, 5).plain.splitlines()) == 5


def test_a_direction_has_no_sign() -> None:
    one, other = sample_history().current, sample_history(sign=-1.0).current
    assert one is not None and other is not None and one != other
    shown = [view.bars(release, TRUE_DIRECTION, 80, 12) for release in (one, other)]
    assert shown[0] == shown[1]


def test_the_history_has_each_release_once() -> None:
    known = sample_history(3)
    assert known.releases == 3 and known.current is not None and known.current.batch == 3
    assert not known.add(release(3, TRUE_DIRECTION))  # published again
    assert not known.add(b"{}")
    assert not known.add(release(9, TRUE_DIRECTION, task=1))
    assert known.batches == {"0": 3, "1": 9}
    assert known.rows[-1].noise == pytest.approx(np.degrees(0.5 * 0.02 * np.sqrt(11 / 2) / 3))
    assert "moved" in view.plain_line(known) and "release 3" in view.plain_line(known)


def test_warm_up_and_change_are_said_in_words() -> None:
    known = history.History("0", change_after=2500)
    assert known.add(warming_up())
    assert view.plain_line(known) == "release 1  1000 records  warming up (batch 1 of 2)"
    assert known.first_s is None and known.angles == []
    known.add(release(2, TRUE_DIRECTION))
    assert known.angles == [pytest.approx(0, abs=1e-6)] and known.rows[0].moved is None
    known.add(release(3, TRUE_DIRECTION))  # the fleet has changed, the model has not
    assert known.angles[-1] > 20
    known.add(release(4, true_direction(changed=True), drift=True))
    assert known.angles[-1] == pytest.approx(0, abs=1e-6) and known.drifts == 1
    assert "the stream has changed" in view.plain_line(known)
    assert "the stream has changed" in "\n".join(drawn(known, 120, 40))
    assert "changed" in "\n".join(drawn(sample_history(), 120, 60)).split("noise alone", 1)[1]


def test_what_is_not_private_is_said() -> None:
    assert "NOT PRIVATE" in view.promise(PROMISE.model_copy(update={"private": False})).plain


# The whole


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough time to close, also on a busy machine."""
    monkeypatch.setattr("demo.deployments.LEAVE_SECONDS", PATIENCE_SECONDS)


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same noise in every run; the demonstration takes no seed.

    With fresh noise, the warm-up found a scale for one feature that was far too large in 2 of 395
    models, and their component was 15 to 18 degrees off.
    """
    rng = np.random.default_rng(1)

    def rounded_gaussian(self: Any, values: np.ndarray, sd: float) -> np.ndarray:
        return np.rint(values + rng.standard_normal(values.size) * sd)

    monkeypatch.setattr(SecureNoise, "_rounded_gaussian", rounded_gaussian)


def test_without_a_broker(capsys: pytest.CaptureFixture[str], patient: None, steady: None) -> None:
    handler, threads = signal.getsignal(signal.SIGTERM), set(threading.enumerate())
    arguments = ["--releases", "40", "--batch-size", "2000", "--epsilon", "2"]
    code = demo.main(["--no-broker", *arguments])
    said = capsys.readouterr().out
    assert code == 0, said
    lines = [line for line in said.splitlines() if line.startswith("release ")]
    assert len(lines) >= 40
    assert [int(line.split()[1]) for line in lines] == list(range(1, len(lines) + 1))
    assert f"{len(lines)} releases from {2000 * len(lines):,} records" in said
    assert "an in-memory broker inside this process" in said
    assert "ε = 2, δ = 1e-06 for every record" in said
    assert "serve" in said and "--bootstrap-servers HOST:9092" in said
    assert "release 1  2000 records  warming up (batch 1 of" in said
    # The fleet changes after release 20 and back after release 40; a busy machine makes more.
    before, after = (
        float(re.findall(r"([\d.]+)° from the truth", lines[number - 1])[0]) for number in (20, 40)
    )
    assert before < 5 and after < 10
    assert "the stream has changed: what was learned before was dropped" in said
    assert "The model noticed " in said
    assert re.search(r"the last one is [\d.]+° from the truth", said)
    assert signal.getsignal(signal.SIGTERM) is handler
    assert all(thread.daemon for thread in set(threading.enumerate()) - threads)


def test_shards_without_a_broker(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--no-broker", "--releases", "2", "--batch-size", "2000", "--shards", "2"]
    assert demo.main(arguments) == 0
    assert "releases from" in capsys.readouterr().out


@pytest.mark.slow
def test_privacy_per_device_without_a_broker(
    capsys: pytest.CaptureFixture[str], patient: None, steady: None
) -> None:
    arguments = ["--no-broker", "--unit", "subject", "--releases", "5", "--rate", "8000"]
    assert demo.main([*arguments, "--epsilon", "4"]) == 0
    said = capsys.readouterr().out
    assert "ε = 4, δ = 1e-06 per device: for all that one sends in any round of 2 seconds" in said
    devices = [int(n.replace(",", "")) for n in re.findall(r"about ([\d,]+) devices", said)]
    assert len(devices) >= 6 and max(devices) < 6000
    # Nothing that counts records.
    assert " records" not in said and "lag" not in said
    away = float(re.findall(r"the last one is ([\d.]+)° from the truth", said)[0])
    assert away < 20 or max(devices) < 1000  # a busy machine sends less in a round
    assert "--subject device_id" in said
    with pytest.raises(SystemExit):
        demo.main(["--unit", "subject", "--change", "5"])


@pytest.mark.parametrize("other", (["--unit", "subject"], ["--shards", "2"], ["--no-broker"]))
def test_what_a_cluster_cannot_do_is_refused(
    capsys: pytest.CaptureFixture[str], other: list[str]
) -> None:
    with pytest.raises(SystemExit):
        demo.main(["--engine", "spark", *other])
    assert f"--engine spark does not work with {other[0]}" in capsys.readouterr().err


def test_no_release_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--no-broker", "--seconds", "1", "--batch-size", "1000000"]) == 1
    assert demo.NO_RELEASE in capsys.readouterr().out


def test_a_machine_without_brokers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, patient: None
) -> None:
    def none(progress: Any) -> Any:
        raise BrokerUnavailable("no Kafka broker can be had here:\n  docker: no docker command")

    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    monkeypatch.setattr(demo.brokers, "provide_broker", none)
    monkeypatch.setenv("DPPCA_SEED", "1")  # of somebody's own model
    assert demo.main(["--releases", "1", "--batch-size", "2000"]) == 0
    said = capsys.readouterr().out
    assert "docker: no docker command" in said
    assert "an in-memory broker inside this process" in said
    assert "NOT PRIVATE" not in said


def test_an_address_is_an_order(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ADDRESS_VARIABLE, "127.0.0.1:9")
    assert demo.main(["--seconds", "5"]) == 1
    said = capsys.readouterr().out
    assert "does not answer" in said and "release 1" not in said


@pytest.mark.broker
def test_on_a_real_broker(broker: Any) -> None:
    """The processes of `make run`, ended as Ctrl-C does."""
    environment = {**os.environ, ADDRESS_VARIABLE: broker.bootstrap_servers}
    process = subprocess.Popen(
        [sys.executable, "-m", "demo", "--batch-size", "2000"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
    )  # fmt: skip
    try:
        lines = []
        for line in process.stdout or ():
            lines.append(line)
            if line.startswith("release 4 "):
                break
        process.send_signal(signal.SIGINT)
        said = "".join(lines) + process.communicate(timeout=PATIENCE_SECONDS)[0]
        assert process.returncode == 0, said
        assert "release 1  2000 records  warming up (batch 1 of" in said
        assert "° from the truth" in said
        assert "your cluster at" in said and "left on your cluster: telemetry-demo-" in said
    finally:
        process.kill()
        process.wait()


class EndedBroker(ManagedBroker):
    """A broker that ends as soon as it has begun."""

    kind = "local"
    _check = _prepare = _command = lambda self: None  # type: ignore[assignment]

    def start(self) -> None:
        self._make_folder()
        self.port = 9

    def log_tail(self, offset: int = 0, lines: int = 30) -> str:
        return "; the end of its log:\nout of memory"


def test_the_broker_of_a_command_that_has_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command says so and ends, rather than waiting for ever beside a broker that is gone."""
    monkeypatch.setattr(broker_command, "LocalBroker", EndedBroker)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert broker_command.main(["run", "--kind", "local"]) == 1
    said = capsys.readouterr()
    assert said.out == "127.0.0.1:9\n" and "the broker has ended; the end of its log" in said.err

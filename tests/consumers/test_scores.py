"""Scores of records: those of `Projector` with the newest release, each record exactly once."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import pytest
from msgspec import UNSET

from consumers.cli import commands, main
from consumers.errors import ConfigurationError, Unavailable
from consumers.protocols import Chunk
from consumers.scoring import score
from consumers.scoring.score import MessageRows, Scoring, ensure_scores_topic
from consumers.scoring.scorer import CurrentModel, RowsToScore, ScoredRow, Scorer
from consumers.scoring.status import WINDOW, Alarms, ScoreStatus
from consumers.settings import ClusterSettings, load_part
from stream_dppca import Projector
from tests.support.memory import MemoryBroker

from .helpers import (
    FEATURES,
    INPUT,
    MODEL,
    OUTPUT,
    as_json,
    cluster,
    drain,
    make_codec,
    memory_log,
    rows,
    start_task,
)
from .test_cli import on


@pytest.fixture(scope="module")
def releases() -> list[bytes]:
    """Three releases of a model."""
    on = cluster()
    log = memory_log(on)
    for row in rows(900):
        on.produce(INPUT, as_json(row))
    task = start_task(log)
    try:
        drain(task)
        return [message.value for message in log.scan(OUTPUT)]
    finally:
        task.close()
        task.membership.close()  # type: ignore[attr-defined]


class Records:
    """A group that reads records in pieces, and fails on request."""

    def __init__(self, values: list[bytes | None], committed: list[int], fail_at: int = -1) -> None:
        self._values, self._committed, self._fail_at = values, committed, fail_at
        self._at = committed[-1] if committed else 0

    def read(self, timeout_s: float) -> list[Chunk]:
        piece = range(self._at, min(self._at + 7, len(self._values)))
        self._at = piece.stop
        keys = [b"k" if o % 2 else None for o in piece]
        return [Chunk(0, piece, [self._values[o] for o in piece], (), keys)] if piece else []

    def positions(self) -> dict[int, int]:
        return {0: self._at}

    def commit(self) -> None:
        if len(self._committed) == self._fail_at:
            raise Unavailable("away")
        self._committed.append(self._at)

    def close(self) -> None:
        pass


class Written(list[tuple[bytes, bytes]]):
    """Takes messages, and gives them to its readers when it is told to wait for the brokers."""

    def __init__(self) -> None:
        super().__init__()
        self._sent: list[Any] = []

    def put(self, messages: Any) -> None:
        self._sent += messages

    def flush(self) -> None:
        self.extend(self._sent)
        self._sent = []

    def close(self) -> None:
        self._sent = []


def run(releases: list[bytes], values: list[bytes | None], fail_at: int = -1) -> Any:
    on = cluster()
    for value in releases:
        on.produce(OUTPUT, value)
    committed: list[int] = []
    written, status = Written(), ScoreStatus()
    groups = [Records(values, committed, fail_at)]

    def open_source(release: Any) -> MessageRows:
        group = groups.pop() if groups else Records(values, committed)
        codec = make_codec("json", release.features, 1000)
        return MessageRows(group, codec, {0: len(values)})  # type: ignore[arg-type]

    scoring = Scoring(
        memory_log(on),
        CurrentModel(MODEL),
        OUTPUT,
        open_source,
        lambda: written,
        status,  # type: ignore[arg-type,return-value]
    )
    return scoring.run(threading.Event(), once=True), written, committed, status


def with_limits(release: bytes, spe: float, t2: float) -> bytes:
    limits = {
        name: [{"rate": 0.01, "value": value, "sd": 0.1}]
        for name, value in (("spe", spe), ("t2", t2))
    }
    return json.dumps({**json.loads(release), "limits": limits}).encode()


def test_scores_are_those_of_the_projector(releases: list[bytes]) -> None:
    X = rows(50, seed=9)
    values: list[bytes | None] = [as_json(row) for row in X]
    values[3] = b"not a record"
    few = dict(zip(FEATURES[:-1], X[4], strict=False))
    values[4] = json.dumps(few).encode()
    values[5] = b'{"cpu": 1.5}'
    release = with_limits(releases[-1], spe=1.0, t2=4.0)
    count, written, committed, metrics = run([*releases[:-1], release], values)
    assert count == 50 and committed[-1] == 50
    assert json.loads(metrics.component()) == json.loads(release)  # /component
    projector = Projector.from_release(release)
    flags = []
    for offset, (key, value) in enumerate(written):
        found = json.loads(value)
        assert (found["model"], found["batch"]) == (MODEL, 3)
        assert (found["partition"], found["offset"], found["row"]) == (0, offset, 0)
        assert found["private"] is False
        assert key == (b"k" if offset % 2 else b"0/%d" % offset)
        if offset in (3, 5):
            assert found["scores"] is found["spe"] is found["t2"] is found["anomaly"] is None
            assert found["contributions"] == [] and found["n_read"] == (offset == 5)
            assert found["by"] is None
            continue
        record = few if offset == 4 else dict(zip(FEATURES, X[offset], strict=True))
        spe, t2 = projector.spe(record), projector.t2(record)
        assert found["n_read"] == projector.n_read(record) == len(record)
        assert found["scores"] == pytest.approx(
            list(projector.transform(record).values()), abs=1e-6
        )
        assert (found["spe"], found["t2"]) == pytest.approx((spe, t2), abs=1e-6)
        assert found["anomaly"] is projector.is_anomaly(record) is (spe > 1 or t2 > 4)
        flags.append(found["anomaly"])
        shares = projector.contributions(record, "t2" if t2 / 4 > spe else "spe")
        assert dict(found["contributions"]) == pytest.approx(shares, abs=1e-6)
        assert [name for name, _ in found["contributions"]] == list(shares)
        assert found["by"] == ("t2" if t2 / 4 > spe else "spe")
    assert 0 < sum(flags) < len(flags) and metrics.unlimited == 0
    shown = re.sub("#.*\n", "", metrics.render().decode())
    assert f"dppca_scored_total 50.0\ndppca_beyond_total {sum(flags)}.0" in re.sub(
        "#.*\n", "", shown
    )
    assert "dppca_beyond_rate 0.02" in shown and "dppca_beyond_share NaN" in shown


def test_without_a_limit_there_is_no_flag(
    releases: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    events: dict[str, Any] = {}
    monkeypatch.setattr(score, "log_event", lambda event, **fields: events.update({event: fields}))
    other = {"spe": [{"rate": rate, "value": 9.0 - rate, "sd": 0.1} for rate in (0.1, 0.05)]}
    bare = json.dumps({**json.loads(releases[-1]), "limits": other}).encode()
    _, written, _, metrics = run([bare], [as_json(rows(1)[0])])
    assert metrics.unlimited == 1
    assert events["no_limit"]["scores"] == ("spe", "t2")
    assert events["no_limit"]["reason"] == "no limit for 0.01 yet; spe has 0.1, 0.05"
    found = json.loads(written[0][1])
    assert found["anomaly"] is None and found["spe"] >= 0 and len(found["contributions"]) == 3


def test_the_command_says_its_page_and_how_many_scores_had_no_limit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(scoring: Scoring, *_: Any, **__: Any) -> int:
        scoring.status.unlimited = 2
        return 3

    broker = MemoryBroker()
    for topic in ("t", "t.components"):
        broker.create(topic, 1)
    on(broker, monkeypatch)
    monkeypatch.setattr(commands, "_stop_on_signals", threading.Event)
    monkeypatch.setattr("consumers.cli.score.Scoring.run", run)
    monkeypatch.setattr("consumers.cli.score.set_up_logs", lambda *_, **__: None)
    said: dict[str, Any] = {}
    monkeypatch.setattr(
        "consumers.monitoring.http.log_event", lambda _, **fields: said.update(fields)
    )
    command = [
        "score",
        "--once",
        "--input-topic",
        "t",
        "--bootstrap-servers",
        "x:1",
        "--http-host",
        "127.0.0.1",
        "--http-port",
        "0",
    ]
    assert main(command) == 0
    assert capsys.readouterr().err.endswith(
        "3 scores written to t.scores, 2 of them without a limit\n"
    )
    assert said["page"] == f"http://127.0.0.1:{said['port']}/"


def test_the_share_beyond_a_limit_is_of_the_last_records() -> None:
    metrics = ScoreStatus()
    for beyond in (1, 5):
        for _ in range(1000):
            metrics.scored(count=120, compared=100, beyond=beyond)
        share = metrics.registry.get_sample_value("dppca_beyond_share")
        assert share == pytest.approx(beyond / 100, rel=0.01)


def test_after_a_failure_it_resumes_at_the_offsets_of_the_group(
    releases: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score, "BACKOFF_SECONDS", 0.0)
    values: list[bytes | None] = [as_json(row) for row in rows(50)]
    monkeypatch.setattr(score, "COMMIT_SECONDS", 0.0)
    _, written, _, _ = run(releases, values, fail_at=3)
    offsets = [json.loads(value)["offset"] for _, value in written]
    # What was written before the commit failed is written again, in full.
    assert offsets == [*range(28), *range(21, 50)]


def test_the_newest_release_with_components_counts(releases: list[bytes]) -> None:
    current = CurrentModel(MODEL)
    empty = {**json.loads(releases[2]), "components": [], "status": "nothing_learned", "batch": 4}
    other = {**json.loads(releases[2]), "model": "other", "batch": 9}
    current.see([b"", None, b"{}", json.dumps(other).encode()])
    assert current.release is None
    for seen, batch in ((releases[:2], 2), ([json.dumps(empty).encode()], 2), (releases[2:], 3)):
        current.see(seen)
        assert current.release is not None and current.release.batch == batch


def test_packed_rows(releases: list[bytes]) -> None:
    current = CurrentModel(MODEL)
    current.see(releases)
    assert current.release is not None
    X = rows(4)
    origins = [(0, 5, 0, UNSET), (0, 5, 1, UNSET), (1, 6, 0, UNSET), (1, 6, 1, UNSET)]
    found = Scorer(current.release).scores(RowsToScore(X, origins, [None] * 4))
    assert [(s.partition, s.offset, s.row, s.subject) for s in found] == origins
    expected = Projector.from_release(releases[-1]).spe(X)
    assert [s.spe for s in found] == pytest.approx(expected, abs=1e-6)


def test_the_topic_is_made_like_the_input_or_refused() -> None:
    on = cluster(partitions=3)
    log = memory_log(on)
    settings = load_part(
        ClusterSettings, {"input_topic": INPUT, "model": MODEL, "output_topic": OUTPUT}
    )
    ensure_scores_topic(log, settings, "m.scores", once=True)
    found = log.topic("m.scores")
    assert found is not None and found.partitions == 3
    with pytest.raises(ConfigurationError, match="a topic of its own"):
        ensure_scores_topic(log, settings, INPUT, once=True)
    with pytest.raises(ConfigurationError, match="create it"):
        ensure_scores_topic(log, settings.model_copy(update={"create_topics": False}), "x", True)
    with pytest.raises(ConfigurationError, match="there is no model"):
        ensure_scores_topic(log, settings.model_copy(update={"output_topic": "none"}), "x", True)


def test_help_says_that_scores_are_not_private(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["score", "--help"])
    assert "THE SCORES ARE NOT PRIVATE" in " ".join(capsys.readouterr().out.split())


def test_alarms_are_for_keys_most_of_whose_records_are_beyond_a_limit() -> None:
    alarms = Alarms()
    few = ScoredRow("m", 1, 0, 0, 0, 3, [0.0], 1.0, 1.0, 0.01, False, ())
    many = ScoredRow("m", 1, 0, 0, 0, 3, [0.0], 50.0, 1.0, 0.01, True, [("fan_rpm", -40.0)])
    keys = [b"a", b"b", None] * 10
    more = ScoredRow(
        "m", 1, 0, 0, 0, 3, [0.0], 60.0, 1.0, 0.01, True, [("oil", 30.0), ("fan_rpm", -20.0)]
    )
    for _ in range(200):
        alarms.see(keys, [many if key != b"a" else few for key in keys])
        alarms.see(keys, [more if key != b"a" else few for key in keys])
    [alarm] = alarms.shown()
    # Not what the worst record says, but what they have in common.
    assert (alarm["key"], alarm["contributions"]) == ("b", [("fan_rpm", -30.0), ("oil", 15.0)])
    assert alarm["beyond"] == alarm["seen"] <= 2 * WINDOW
    status = ScoreStatus()
    for number in range(9):  # of which the page shows five
        status.see([b"%d" % number] * 5, [many if number % 9 else few] * 5)
    assert status.registry.get_sample_value("dppca_keys_beyond") == 8
    assert len(status.facts()["beyond"]["alarms"]) == 5
    for _ in range(2 * WINDOW):  # what is over is forgotten
        alarms.see([b"b"], [few])
    assert alarms.shown() == []

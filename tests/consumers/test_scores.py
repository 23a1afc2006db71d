"""Scores of records: those of `Projector` with the newest release, each record exactly once."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import pytest

from consumers.cli import main
from consumers.errors import ConfigurationError, Unavailable
from consumers.kafka.subscription import Received
from consumers.messages.codecs import make_codec
from consumers.model.scores import CurrentModel, Scorer
from consumers.protocols import Message
from consumers.service import score
from consumers.service.score import ensure_scores_topic, run_scoring
from consumers.settings import ClusterSettings, load_part
from stream_dppca import Projector

from .helpers import (
    FEATURES,
    INPUT,
    MODEL,
    OUTPUT,
    as_json,
    cluster,
    drain,
    memory_log,
    rows,
    start_task,
)


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

    def read(self, timeout_s: float) -> list[Received]:
        piece = [Received(0, o, b"k" if o % 2 else None, self._values[o])
                 for o in range(self._at, min(self._at + 7, len(self._values)))]  # fmt: skip
        self._at += len(piece)
        return piece

    def positions(self) -> dict[int, int]:
        return {0: self._at}

    def commit(self) -> None:
        if len(self._committed) == self._fail_at:
            raise Unavailable("away")
        self._committed.append(self._at)

    def close(self) -> None:
        pass


class Written(list[Message]):
    def send(self, messages: Any) -> None:
        self.extend(messages)

    def close(self) -> None:
        pass


def run(releases: list[bytes], values: list[bytes | None], fail_at: int = -1) -> Any:
    on = cluster()
    for value in releases:
        on.produce(OUTPUT, value)
    for value in values:
        on.produce(INPUT, value)
    committed: list[int] = []
    written = Written()
    sources = [Records(values, committed, fail_at)]

    def open_source() -> Records:
        return sources.pop() if sources else Records(values, committed)

    count = run_scoring(
        memory_log(on), CurrentModel(MODEL), output_topic=OUTPUT, input_topic=INPUT,
        open_source=open_source, open_target=lambda: written, stop=threading.Event(), once=True,
        make_codec=lambda release: make_codec("json", release.features, 1000),
    )  # fmt: skip
    return count, written, committed


def test_scores_are_those_of_the_projector(releases: list[bytes]) -> None:
    X = rows(50, seed=9)
    values: list[bytes | None] = [as_json(row) for row in X]
    values[3] = b"not a record"
    few = dict(zip(FEATURES[:-1], X[4], strict=False))
    values[4] = json.dumps(few).encode()
    values[5] = b'{"cpu": 1.5}'
    count, written, committed = run(releases, values)
    assert count == 50 and committed[-1] == 50
    projector = Projector.from_release(releases[-1])
    for offset, message in enumerate(written):
        found = json.loads(message.value)
        assert (found["model"], found["batch"]) == (MODEL, 3)
        assert (found["partition"], found["offset"], found["row"]) == (0, offset, 0)
        assert found["private"] is False
        assert message.key == (b"k" if offset % 2 else b"0/%d" % offset)
        if offset in (3, 5):
            assert found["scores"] is found["anomaly"] is None
            continue
        record = few if offset == 4 else dict(zip(FEATURES, X[offset], strict=True))
        assert found["scores"] == pytest.approx(list(projector.transform(record).values()))
        assert found["anomaly"] == pytest.approx(projector.spe(record))


def test_after_a_failure_it_resumes_at_the_offsets_of_the_group(
    releases: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score, "BACKOFF_SECONDS", 0.0)
    values: list[bytes | None] = [as_json(row) for row in rows(50)]
    _, written, _ = run(releases, values, fail_at=3)
    offsets = [json.loads(message.value)["offset"] for message in written]
    # What was written before the commit failed is written again, in full.
    assert offsets == [*range(28), *range(21, 50)]


def test_the_newest_release_with_components_counts(releases: list[bytes]) -> None:
    current = CurrentModel(MODEL)
    empty = {**json.loads(releases[2]), "components": [], "status": "nothing_learned", "batch": 4}
    other = {**json.loads(releases[2]), "model": "other", "batch": 9}
    assert not current.see([b"", None, b"{}", json.dumps(other).encode()])
    assert current.see(releases[:2]) and current.release is not None
    assert current.release.batch == 2
    assert not current.see([json.dumps(empty).encode(), releases[1]])
    assert current.see(releases[2:]) and current.release.batch == 3


def test_packed_rows(releases: list[bytes]) -> None:
    current = CurrentModel(MODEL)
    current.see(releases)
    assert current.release is not None
    X = rows(4)
    found = list(Scorer(current.release).scores(X, [(0, 5), (1, 6)], 2))
    assert [(s.partition, s.offset, s.row) for s in found] == [(0, 5, 0), (0, 5, 1), (1, 6, 0),
                                                               (1, 6, 1)]  # fmt: skip
    expected = Projector.from_release(releases[-1]).spe(X)
    assert np.array_equal([s.anomaly for s in found], expected)


def test_the_topic_is_made_like_the_input_or_refused() -> None:
    on = cluster(partitions=3)
    log = memory_log(on)
    settings = load_part(ClusterSettings, {"input_topic": INPUT, "model": MODEL,
                                           "output_topic": OUTPUT})  # fmt: skip
    ensure_scores_topic(log, settings, "m.scores")
    found = log.topic("m.scores")
    assert found is not None and found.partitions == 3
    with pytest.raises(ConfigurationError, match="a topic of its own"):
        ensure_scores_topic(log, settings, INPUT)
    with pytest.raises(ConfigurationError, match="create it"):
        ensure_scores_topic(log, settings.model_copy(update={"create_topics": False}), "x")
    with pytest.raises(ConfigurationError, match="there is no model"):
        ensure_scores_topic(log, settings.model_copy(update={"output_topic": "none"}), "x")


def test_help_says_that_scores_are_not_private(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["score", "--help"])
    assert "THE SCORES ARE NOT PRIVATE" in " ".join(capsys.readouterr().out.split())

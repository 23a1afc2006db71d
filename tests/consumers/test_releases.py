"""Published releases: bytes, schema, headers, text."""

from __future__ import annotations

import datetime
import inspect
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from consumers.cli.history import published
from consumers.model.describe import describe, meaning
from consumers.model.releases import (
    SCHEMA_FILE,
    PublishedRelease,
    parse_release,
    release_message,
    schema,
)
from consumers.monitoring.metrics import Metrics
from consumers.scoring.status import ScoreStatus
from consumers.settings import RoundRule
from stream_dppca import DPPCA, PerSubject, Projector, Release

NAMES = ("a", "b", "c")


def released(batch: int = 1, seed: int | None = None) -> PublishedRelease:
    model = DPPCA(
        features=NAMES,
        epsilon=8.0,
        delta=1e-3,
        batch_size=500,
        seed=seed,
        center="none",
        scales=None,
    )
    rng = np.random.default_rng(0)
    for _ in range(batch):
        model.learn_array(rng.standard_normal((500, 3)) * [3, 1, 1])
    assert model.last_release is not None
    return PublishedRelease.of(model.last_release, "m")


class Fleet:
    """A model with default settings, and the records it has seen: raw, and in mixed units."""

    SIZE, NAMES = 4000, ("cpu", "bytes", "temperature", "constant")

    def __init__(self) -> None:
        self._mean, self._sd = np.array([50, 1e9, 20, 7]), np.array([10, 1e8, 3, 1])
        self._rng = np.random.default_rng(0)
        self.model = DPPCA(
            features=self.NAMES, epsilon=2.0, delta=1e-5, batch_size=self.SIZE, seed=0
        )
        self.seen = np.zeros((0, 4))

    def learn(self, batches: int) -> PublishedRelease:
        for _ in range(batches):
            load = self._rng.standard_normal((self.SIZE, 1)) * [0.9, 0.8, 0.1, 0.0]
            noise = self._rng.standard_normal((self.SIZE, 4)) * [0.4, 0.5, 1.0, 0.0]
            X = self._mean + self._sd * (load + noise)
            self.model.learn_array(X)
            self.seen = np.concatenate([self.seen, X])
        assert self.model.last_release is not None
        return PublishedRelease.of(self.model.last_release, "m")


# JSON


def test_the_schema_is_committed() -> None:
    assert json.loads(SCHEMA_FILE.read_text()) == schema(), "run python -m consumers.model.releases"


def test_the_schema_says_how_to_score_as_the_estimator_does() -> None:
    _, _, rule = (inspect.getdoc(Release) or "").partition("\n\n")
    assert "ln(|z|/clamp)" in rule and schema()["description"].endswith(rule)


def test_what_is_published_fits_the_schema() -> None:
    fleet = Fleet()
    for batches in (1, 3):
        value = json.loads(release_message(fleet.learn(batches)).value)
        jsonschema.validate(value, schema())
        jsonschema.validate({**value, "of_a_later_version": [1]}, schema())
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**value, "status": "fine"}, schema())


def test_readers_ignore_what_they_do_not_know() -> None:
    release = released(batch=3)
    value = json.loads(release_message(release).value)
    value["later"] = {"x": 1}
    value["privacy"]["later"] = 2
    assert parse_release(json.dumps(value).encode()) == release


def test_a_raw_record_is_scored_from_the_published_bytes() -> None:
    fleet = Fleet()
    value = release_message(fleet.learn(4)).value
    projector = Projector.from_release(value)
    far = [1e9, -1e15, 0.0, 8.0]  # beyond the clamp
    for row in [*fleet.seen[:20].tolist(), far]:
        x = dict(zip(Fleet.NAMES, row, strict=True))
        assert projector.transform(x) == fleet.model.transform(x)
        assert projector.spe(x) == fleet.model.spe(x)
    unit = np.ones((1, projector.W.shape[1]))
    there, here = (p.inverse_transform(unit) for p in (projector, fleet.model.projector()))
    np.testing.assert_array_equal(there, here)


def test_a_round_of_questions_pretends_nothing() -> None:
    unit = PerSubject("id", places=500)
    model = DPPCA(features=NAMES, epsilon=1.0, delta=1e-6, unit=unit, seed=1)
    rng = np.random.default_rng(0)
    model.learn_array(rng.standard_normal((500, len(NAMES))), subjects=range(500))
    release = PublishedRelease.of(model.close_round(), "m", RoundRule("id", 3_600_000, 1), 0)
    assert (release.status, release.components, release.center) == ("starting", (), None)
    assert Projector.from_release(release_message(release).value).transform({"cpu": 1.0}) == {}
    rounds = model.first_batches
    assert rounds > 1 and f"starting: round 1 of {rounds}" in describe(release)
    assert "component" not in describe(release) and meaning(release) == ""


def test_a_release_of_another_version_is_refused() -> None:
    value = json.loads(release_message(released()).value)
    with pytest.raises(ValueError, match="is 2, this program reads releases of version 1"):
        parse_release(json.dumps(value | {"version": 2}).encode())


@pytest.mark.parametrize(
    "change",
    [
        {"components": [[1.0, 0.0]]},
        {"center": [1.0]},
        {"spread": [1.0, 2.0]},
        {"features": ["a", "b", 3]},
        {"n_seen": None},
        {"round": {"start": "", "end": ""}},
        {"model": None},
        {"privacy": {"unit": "household"}},
    ],
)
def test_a_release_that_contradicts_itself_is_refused(change: dict[str, Any]) -> None:
    value = json.loads(release_message(released(batch=3)).value)
    with pytest.raises(ValueError):
        parse_release(json.dumps(value | change).encode())


def test_a_release_of_a_round_has_no_count_of_records() -> None:
    unit = PerSubject("id", places=500, period=24)
    model = DPPCA(features=NAMES, epsilon=8.0, delta=1e-3, unit=unit)
    rule = RoundRule("id", 3_600_000, 24)
    made = PublishedRelease.of(model.close_round(), "m", rule, 24)
    message = release_message(made)
    value = json.loads(message.value)
    jsonschema.validate(value, schema())
    assert "n_seen" not in value and isinstance(value["subjects"], float)
    assert value["round"] == {
        "start": "1970-01-02T00:00:00+00:00",
        "end": "1970-01-02T01:00:00+00:00",
    }
    assert dict(message.headers)["ce_time"] == b"1970-01-02T01:00:00+00:00"
    over = value["privacy"]["epsilon_over"]
    assert over["1 day"] == pytest.approx(8.0) and over["7 days"] > 8.0
    assert value["privacy"]["scope"] == "any 24 rounds of one hour, broker time"
    assert parse_release(message.value) == made


# Headers


def test_a_release_is_a_cloud_event() -> None:
    now = datetime.datetime(2026, 1, 2, 3, 4, 5, 999_999, tzinfo=datetime.UTC)
    release = released(batch=3)
    record = release_message(release, now)
    assert record.key == b"m"
    headers = {name: value.decode() for name, value in record.headers}
    assert headers == {
        "content-type": "application/json",
        "ce_specversion": "1.0",
        "ce_type": "stream-dppca.release.v1",
        "ce_source": "/stream-dppca/m",
        "ce_id": "m/3",
        "ce_time": "2026-01-02T03:04:05+00:00",
    }
    assert parse_release(record.value) == release
    assert release_message(parse_release(record.value), now) == record
    data = json.loads(record.value)
    assert data["privacy"]["epsilon"] == 8.0 and data["privacy"]["adjacency"] == "replace-one"
    assert data["features"] == list(NAMES) and len(data["components"][0]) == 3


@pytest.mark.parametrize("junk", [b"", b"{}", b"[]", b'{"version":1}', b"\xff", b"[" * 10**6])
def test_what_is_not_a_release(junk: bytes) -> None:
    with pytest.raises(ValueError):
        parse_release(junk)


# For people


def test_a_release_for_people() -> None:
    text = describe(released(batch=3))
    assert "(ε = 8) plus 0.001 (δ), over the whole stream" in text
    order = [line.split()[0] for line in text.splitlines() if line.startswith("  ")]
    order.remove("loading")
    assert order[0] == "a" and sorted(order) == list(NAMES)
    assert re.search(r"What varies most, 8\d % of all variation: a \(±", text)
    fleet = describe(Fleet().learn(4))
    assert re.search(r"explains (4|5)\d\.\d % ± .* % of the variance", fleet)
    assert "eigenvalues that stand out of the noise: " in fleet
    assert re.search(r"limits of spe: 10 % of the records exceed .* ± ", fleet)
    numbers = re.search(r"cpu +(\S+) ± (\S+) +(\S+) +(\S+) +█", fleet)
    assert numbers is not None
    loading, error, change, around = map(float, numbers.groups())
    assert 0 < error < 0.1
    assert (loading, change) == (pytest.approx(0.7, abs=0.03), pytest.approx(9.1, abs=0.3))
    assert around == pytest.approx(50, abs=0.5)
    sentence = r"cpu \(±[89]\S* around (49|50)\S*\).* rise and fall together\."
    assert re.search(sentence, fleet)
    assert "Not private: the noise came from a seed" in describe(released(seed=1))
    assert len(describe(released(), top=1).splitlines()) < len(describe(released()).splitlines())


def test_the_releases_of_a_model() -> None:
    one, newer = release_message(released(batch=1)), release_message(released(batch=5))
    other = release_message(released(batch=7).model_copy(update={"model": "another"}))
    records = [one, newer, other, one]
    found = [release for _, release in published(records, "m")]
    assert found == [parse_release(one.value), parse_release(newer.value)]
    assert published(records, "other") == []


def test_every_metric_is_defined_and_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "service-reference.md").read_text()
    made = [m for kind in (Metrics, ScoreStatus) for m in kind().registry.collect()]
    for metric in made:
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        row = re.escape(f"| `{name}` | {metric.type} | {metric.documentation} | ")
        assert re.search(row + r"\w.*[.:].* \|\n", text), name  # with what to do when it moves
    assert len(made) == text.count("\n| `dppca_")

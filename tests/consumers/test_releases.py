"""Published releases: bytes, schema, headers, merging, text."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Sequence
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from consumers.model.describe import current_release, describe, meaning
from consumers.model.merge import Merger, merge_releases, merged_message
from consumers.model.releases import (
    SCHEMA_FILE,
    ReleaseDocument,
    make_release,
    parse_release,
    release_message,
    schema,
)
from consumers.protocols import Message
from consumers.service.metrics import DEFINITIONS, Metrics
from stream_dppca import DPPCA, Projector

from .helpers import OUTPUT, cluster, memory_log

NAMES = ("a", "b", "c")


def released(
    task: int = 0, batch: int = 1, seed: int | None = None, scale: tuple[float, ...] = (3, 1, 1)
) -> ReleaseDocument:
    model = DPPCA(features=NAMES, epsilon=8.0, delta=1e-3, batch_size=500, seed=seed,
                  center="none", scales=None)  # fmt: skip
    rng = np.random.default_rng(task)
    for _ in range(batch):
        model.learn_array(rng.standard_normal((500, 3)) * scale)
    assert model.last_release is not None
    return make_release(model.last_release, model="m", task=task, shards=2, features=NAMES)


class Fleet:
    """A shard with default settings, and the records it has seen: raw, and in mixed units."""

    SIZE, NAMES = 4000, ("cpu", "bytes", "temperature", "constant")

    def __init__(self, task: int, mean: Sequence[float], sd: Sequence[float]) -> None:
        self.task, self._mean, self._sd = task, np.array(mean), np.array(sd)
        self._rng = np.random.default_rng(task)
        self.model = DPPCA(
            features=self.NAMES, epsilon=2.0, delta=1e-5, batch_size=self.SIZE, seed=task
        )
        self.seen = np.zeros((0, 4))

    def learn(self, batches: int) -> ReleaseDocument:
        for _ in range(batches):
            load = self._rng.standard_normal((self.SIZE, 1)) * [0.9, 0.8, 0.1, 0.0]
            noise = self._rng.standard_normal((self.SIZE, 4)) * [0.4, 0.5, 1.0, 0.0]
            X = self._mean + self._sd * (load + noise)
            self.model.learn_array(X)
            self.seen = np.concatenate([self.seen, X])
        assert self.model.last_release is not None
        return make_release(
            self.model.last_release, model="m", task=self.task, shards=2, features=self.NAMES,
            warm_up_left=self.model.warm_up_left,
        )  # fmt: skip


def fleets() -> tuple[Fleet, Fleet]:
    """Two shards whose records have other means and other scales."""
    first = Fleet(0, [50, 1e9, 20, 7], [10, 1e8, 3, 1])
    return first, Fleet(1, [70, 2e9, 20, 7], [20, 2e8, 3, 1])


# Version 2


def test_the_schema_is_committed() -> None:
    assert json.loads(SCHEMA_FILE.read_text()) == schema(), "run python -m consumers.model.releases"


def test_what_is_published_fits_the_schema() -> None:
    fleet = fleets()[0]
    for batches in (1, 3):
        release = fleet.learn(batches)
        for published in (release, merge_releases([release])):
            value = json.loads(release_message(published).value)
            jsonschema.validate(value, schema())
            jsonschema.validate({**value, "of_a_later_version": [1]}, schema())
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate({**value, "status": "fine"}, schema())


def test_readers_ignore_what_they_do_not_know() -> None:
    release = released(batch=3)
    value = json.loads(release_message(release).value)
    value["later"] = {"x": 1}
    value["privacy"]["later"] = value["components"][0]["later"] = 2
    assert parse_release(json.dumps(value).encode()) == release


def test_a_raw_record_is_scored_from_the_published_bytes() -> None:
    fleet = fleets()[0]
    value = release_message(fleet.learn(4)).value
    projector = Projector.from_release(value)
    far = [1e9, -1e15, 0.0, 8.0]  # clamped
    for row in [*fleet.seen[:20].tolist(), far]:
        x = dict(zip(Fleet.NAMES, row, strict=True))
        assert projector.transform_one(x) == fleet.model.transform_one(x)
        assert projector.score_one(x) == fleet.model.score_one(x)
    np.testing.assert_array_equal(projector.raw_directions(), fleet.model.raw_directions())


def test_a_warm_up_pretends_nothing() -> None:
    first, second = fleets()
    release = first.learn(1)
    assert (release.status, release.components, release.center) == ("warming_up", (), None)
    assert Projector.from_release(release_message(release).value).transform_one({"cpu": 1.0}) == {}
    assert "warming up (batch 1 of 1)" in describe(release)
    assert "component" not in describe(release) and meaning(release) == ""
    merged = merge_releases([release, second.learn(1)])
    assert (merged.status, merged.components) == ("warming_up", ())
    assert parse_release(release_message(merged).value) == merged


@pytest.mark.parametrize(
    "skipped, batch, status, components",
    [(False, 1, "learned", 1), (True, 5, "skipped", 1), (True, 1, "nothing_learned", 0)],
)
def test_releases_of_version_1_can_be_read(
    skipped: bool, batch: int, status: str, components: int
) -> None:
    state = json.loads((Path(__file__).parent / "states" / "task-v1.json").read_text())
    fields = {**json.loads(state["release"]["value"]), "skipped": skipped, "batch": batch}
    schema_1 = json.loads((SCHEMA_FILE.parent / "release-v1.json").read_text())
    jsonschema.validate(fields, schema_1)
    release = parse_release(json.dumps(fields).encode())
    assert (release.version, release.status, len(release.components)) == (2, status, components)
    assert (release.center, release.privacy.epsilon) == (None, 8.0)
    describe(release)
    merge_releases([release])


# Headers


def test_a_release_is_a_cloud_event() -> None:
    now = datetime.datetime(2026, 1, 2, 3, 4, 5, 999_999, tzinfo=datetime.UTC)
    release = released(batch=3)
    record = release_message(release, now)
    assert record.key == b"m/0"
    headers = {name: value.decode() for name, value in record.headers}
    assert headers == {
        "content-type": "application/json",
        "ce_specversion": "1.0",
        "ce_type": "stream-dppca.release.v2",
        "ce_source": "/stream-dppca/m",
        "ce_subject": "0",
        "ce_id": "m/0/3",
        "ce_time": "2026-01-02T03:04:05+00:00",
    }
    assert parse_release(record.value) == release
    assert release_message(parse_release(record.value), now) == record
    data = json.loads(record.value)
    assert data["privacy"]["epsilon"] == 8.0 and data["privacy"]["adjacency"] == "replace-one"
    assert list(data["components"][0]["loadings"]) == list(NAMES)


def test_a_merged_release_is_the_same_message_whoever_makes_it() -> None:
    """It is not stored. If its publication fails, a successor merges again, at another time."""
    merged = merge_releases([released(0, 2), released(1, 3)])
    first, again = (
        release_message(merged, datetime.datetime(2026, 1, day, tzinfo=datetime.UTC))
        for day in (1, 2)
    )
    assert first == again and dict(first.headers)["ce_id"] == b"m/merged/2-3"


@pytest.mark.parametrize(
    "junk", [b"", b"{}", b"[]", b'{"version":2}', b'{"version":1}', b"\xff", b"[" * 10**6]
)
def test_what_is_not_a_release(junk: bytes) -> None:
    with pytest.raises(ValueError):
        parse_release(junk)


# Merging


def test_shards_are_merged_in_raw_units() -> None:
    """Shards with other means and scales, against the PCA of all their records together."""
    first, second = fleets()
    merged = merge_releases([first.learn(12), second.learn(8)])
    X = np.concatenate([first.seen, second.seen])
    mean, sd = X.mean(axis=0), X.std(axis=0)
    values, vectors = np.linalg.eigh(np.corrcoef(X[:, :3].T))
    truth = np.append(vectors[:, -1], 0.0)
    (component,) = merged.components
    w = np.array(merged.array(component.loadings))
    assert np.linalg.norm(w - truth * (truth @ w)) < 0.03  # of each shard: about 0.06 off
    assert component.explained_variance_ratio == pytest.approx(values[-1] / 3, abs=0.02)
    projector = Projector.from_release(release_message(merged).value)
    raw_mean = projector.center + projector.scale * projector.mean
    np.testing.assert_allclose(raw_mean[:3], mean[:3], rtol=0, atol=0.02 * sd[:3].max() + 1e7)
    np.testing.assert_allclose(projector.scale[:3], sd[:3], rtol=0.03)
    assert merged.deviation is not None and merged.deviation["constant"] == 0.0
    # Scores of raw records are those of a plain PCA, whatever their shard.
    U = np.clip((X[::400, :3] - mean[:3]) / sd[:3], -3, 3) @ truth[:3]
    found = projector.transform_array(X[::400])[:, 0]
    assert abs(np.corrcoef(U, found)[0, 1]) > 0.998
    assert np.std(found) == pytest.approx(np.std(U), rel=0.05)


def test_a_merged_release_of_one_shard_scores_as_the_shard_does() -> None:
    fleet = fleets()[0]
    merged = Projector.from_release(release_message(merge_releases([fleet.learn(5)])).value)
    X = np.concatenate([fleet.seen[:50], [[1e9, -1e15, 0.0, 8.0]]])
    ours, theirs = merged.transform_array(X), fleet.model.transform_array(X)
    sign = np.sign(ours[0] * theirs[0])
    np.testing.assert_allclose(sign * ours, theirs, rtol=0, atol=1e-9)


def test_a_shard_that_warms_up_counts_for_nothing() -> None:
    first, second = fleets()
    known, waiting = first.learn(5), second.learn(1)
    merged = merge_releases([known, waiting])
    assert merged.status == "learned" and merged.n_seen == known.n_seen + waiting.n_seen
    alone = merge_releases([known])
    assert (merged.components, merged.center) == (alone.components, alone.center)
    assert [s.task for s in merged.sources] == [0, 1]


def test_given_scales_stay_the_units_of_the_merged_component() -> None:
    def shard(task: int, mean: float) -> ReleaseDocument:
        model = DPPCA(features=NAMES, epsilon=8.0, delta=1e-3, batch_size=2000, scales=(2, 2, 2))
        rng = np.random.default_rng(task)
        for _ in range(5):
            model.learn_array(rng.standard_normal((2000, 3)) * [6, 2, 2] + [0, mean, 0])
        assert model.last_release is not None
        return make_release(model.last_release, model="m", task=task, shards=2, features=NAMES)

    merged = merge_releases([shard(0, -2.0), shard(1, 2.0)])
    assert merged.scale is not None
    assert merged.array(merged.scale) == pytest.approx([2.0] * 3)
    assert merged.components[0].spread == pytest.approx(9.0, rel=0.3)
    assert abs(merged.components[0].loadings["a"]) > 0.98


def test_merging() -> None:
    first, second = released(0, 4), released(1, 2)
    merged = merge_releases([second, first])
    assert merged == merge_releases([first, second])
    assert merged.task == "merged" and merged.batch == 6 and merged.n_seen == 3000
    assert [(s.task, s.batch) for s in merged.sources] == [(0, 4), (1, 2)]
    assert abs(merged.components[0].loadings["a"]) > 0.95
    assert merged.privacy == first.privacy
    assert not merge_releases([first, released(1, seed=3)]).privacy.private


def test_merging_one_is_the_same_direction() -> None:
    only = released(0, 4)
    merged = merge_releases([only])
    ours = np.array(list(only.components[0].loadings.values()))
    theirs = np.array(list(merged.components[0].loadings.values()))
    assert abs(ours @ theirs) == pytest.approx(1)
    assert merged.components[0].spread == pytest.approx(only.components[0].spread)
    assert merged.scale == only.scale and merged.center == only.center


@pytest.mark.parametrize("skipped", [False, True])
def test_merging_weighs_by_what_was_seen(skipped: bool) -> None:
    much, little = released(0, 9), released(1, 1, scale=(1, 1, 3))
    spread = None if skipped else 9.0  # of a shard whose last batch was skipped
    much = with_spread(much, spread)
    little = with_spread(little, 9.0)
    assert abs(merge_releases([much, little]).components[0].loadings["a"]) > 0.9


def with_spread(release: ReleaseDocument, spread: float | None) -> ReleaseDocument:
    (component,) = release.components
    return release.model_copy(
        update={"components": (component.model_copy(update={"spread": spread}),)}
    )


def test_the_merger_follows_the_topic() -> None:
    on = cluster()
    log = memory_log(on)
    records = [
        Message(b"x", b"junk"),
        release_message(released(0, 2)),
        release_message(released(0, 1)),
    ]
    log.publish(records)
    merger = Merger(log, OUTPUT, "m")
    first = merger.poll()
    assert first is not None and parse_release(first.value).batch == 2
    assert merger.poll() is not None  # it was not published
    merger.published(first)
    assert merger.poll() is None
    log.publish([first, release_message(released(1, 3))])
    second = merger.poll()
    assert second is not None and parse_release(second.value).batch == 5
    log.publish([second])
    assert Merger(log, OUTPUT, "m").poll() is None
    assert merged_message(log.scan(OUTPUT), "m") is not None
    assert merged_message(log.scan(OUTPUT), "other") is None


def test_a_release_for_people() -> None:
    text = describe(released(batch=3))
    assert "(ε = 8) plus 0.001 (δ), over the whole stream" in text
    order = [line.split()[0] for line in text.splitlines() if line.startswith("  ")]
    order.remove("loading")
    assert order[0] == "a" and sorted(order) == list(NAMES)
    assert "What varies most: a (±" in text
    fleet = describe(fleets()[0].learn(4))
    assert "explains 5" in fleet and " % of the variance" in fleet
    numbers = re.search(r"cpu +(\S+) +(\S+) +(\S+) +█", fleet)
    assert numbers is not None
    loading, change, around = map(float, numbers.groups())
    assert (loading, change) == (pytest.approx(0.7, abs=0.03), pytest.approx(9.1, abs=0.3))
    assert around == pytest.approx(50, abs=0.5)
    sentence = r"cpu \(±[89]\S* around (49|50)\S*\).* rise and fall together\."
    assert re.search(sentence, fleet)
    assert "Not private: the noise came from a seed" in describe(released(seed=1))
    assert len(describe(released(), top=1).splitlines()) < len(describe(released()).splitlines())


def test_the_current_release() -> None:
    one, two = release_message(released(0, 1)), release_message(released(1, 2))
    newer = release_message(released(0, 5))
    records = [one, two, newer, one]
    assert current_release(records, "m", None) == parse_release(newer.value)
    assert current_release(records, "m", "1") == parse_release(two.value)
    assert current_release(records, "m", "7") is None
    assert current_release(records, "other", None) is None
    merged = merged_message(records, "m")
    assert merged is not None
    found = current_release([*records, merged], "m", None)
    assert found is not None and found.task == "merged"


def test_a_merged_release_of_one_shard_is_passed_over() -> None:
    one, newer = (released(0, n).model_copy(update={"shards": 1}) for n in (1, 2))
    merged = merge_releases([one])
    records = [release_message(release) for release in (one, merged, newer)]
    assert current_release(records, "m", None) == newer
    assert current_release(records, "m", "merged") == merged


def test_every_metric_is_defined_and_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "service.md").read_text()
    shown = Metrics().render().decode()
    for name, definition in DEFINITIONS.items():
        assert f"# HELP {name} " in shown
        assert f"| `{name}` | {definition.kind} | {definition.help} | {definition.action} |" in text

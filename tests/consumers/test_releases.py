"""What goes out: bytes, schema, headers, merging, text."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import numpy as np
import pytest

from consumers.inspect import current_release, describe
from consumers.log import Record
from consumers.merge import Merger, merge_releases, merged_record
from consumers.metrics import DEFINITIONS, Metrics
from consumers.releases import (
    SCHEMA_FILE,
    PublishedRelease,
    make_record,
    make_release,
    parse_release,
    schema,
)
from stream_dppca import DPPCA

from .helpers import OUTPUT, cluster, memory_log

NAMES = ("a", "b", "c")


def released(
    task: int = 0, batch: int = 1, seed: int | None = None, scale: tuple[float, ...] = (3, 1, 1)
) -> PublishedRelease:
    known = {"center": "none", "scales": None}
    model = DPPCA(features=NAMES, epsilon=8.0, delta=1e-3, batch_size=500, seed=seed, **known)
    rng = np.random.default_rng(task)
    for _ in range(batch):
        model.learn_array(rng.standard_normal((500, 3)) * scale)
    assert model.last_release is not None
    return make_release(model.last_release, model="m", task=task, shards=2, features=NAMES)


def test_the_schema_is_committed() -> None:
    assert json.loads(SCHEMA_FILE.read_text()) == schema(), "run python -m consumers.releases"


def test_a_release_is_a_cloud_event() -> None:
    now = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    release = released(batch=3)
    record = make_record(release, now)
    assert record.key == b"m/0"
    headers = {name: value.decode() for name, value in record.headers}
    assert headers == {
        "content-type": "application/json",
        "ce_specversion": "1.0",
        "ce_type": "stream-dppca.release.v1",
        "ce_source": "/stream-dppca/m",
        "ce_subject": "0",
        "ce_id": "m/0/3",
        "ce_time": "2026-01-02T00:00:00.000+00:00",
    }
    assert parse_release(record.value) == release
    assert make_record(parse_release(record.value), now) == record
    data = json.loads(record.value)
    assert data["privacy"]["epsilon"] == 8.0 and data["privacy"]["adjacency"] == "replace-one"
    assert list(data["components"][0]["loadings"]) == list(NAMES)


@pytest.mark.parametrize("junk", [b"", b"{}", b"[]", b'{"version":2}', b"\xff"])
def test_what_is_not_a_release(junk: bytes) -> None:
    with pytest.raises(ValueError):
        parse_release(junk)


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


@pytest.mark.parametrize("skipped", [False, True])
def test_merging_weighs_by_what_was_seen(skipped: bool) -> None:
    much, little = released(0, 9), released(1, 1, scale=(1, 1, 3))
    spread = None if skipped else 9.0  # of a shard whose last batch was skipped
    much = with_spread(much, spread)
    little = with_spread(little, 9.0)
    assert abs(merge_releases([much, little]).components[0].loadings["a"]) > 0.9


def with_spread(release: PublishedRelease, spread: float | None) -> PublishedRelease:
    (component,) = release.components
    return release.model_copy(
        update={"components": (component.model_copy(update={"spread": spread}),)}
    )


def test_the_merger_follows_the_topic() -> None:
    on = cluster()
    log = memory_log(on)
    records = [Record(b"x", b"junk"), make_record(released(0, 2)), make_record(released(0, 1))]
    log.publish(records)
    merger = Merger(log, OUTPUT, "m")
    first = merger.poll()
    assert first is not None and parse_release(first.value).batch == 2
    assert merger.poll() is not None  # it was not published
    merger.published(first)
    assert merger.poll() is None
    log.publish([first, make_record(released(1, 3))])
    second = merger.poll()
    assert second is not None and parse_release(second.value).batch == 5
    log.publish([second])
    assert Merger(log, OUTPUT, "m").poll() is None
    assert merged_record(log.scan(OUTPUT), "m") is not None
    assert merged_record(log.scan(OUTPUT), "other") is None


def test_a_release_for_people() -> None:
    text = describe(released(batch=3))
    assert "(8, 0.001)-differentially private, replace-one record, whole stream" in text
    order = [line.split()[0] for line in text.splitlines() if line.startswith("  ")]
    assert order[0] == "a" and sorted(order) == list(NAMES)
    assert "NOT PRIVATE" in describe(released(seed=1))
    assert len(describe(released(), top=1).splitlines()) < len(describe(released()).splitlines())


def test_the_current_release() -> None:
    one, two = make_record(released(0, 1)), make_record(released(1, 2))
    newer = make_record(released(0, 5))
    records = [one, two, newer, one]
    assert current_release(records, "m", None) == parse_release(newer.value)
    assert current_release(records, "m", "1") == parse_release(two.value)
    assert current_release(records, "m", "7") is None
    assert current_release(records, "other", None) is None
    merged = merged_record(records, "m")
    assert merged is not None
    found = current_release([*records, merged], "m", None)
    assert found is not None and found.task == "merged"


def test_a_merged_release_of_one_shard_is_passed_over() -> None:
    one, newer = (released(0, n).model_copy(update={"shards": 1}) for n in (1, 2))
    merged = merge_releases([one])
    records = [make_record(release) for release in (one, merged, newer)]
    assert current_release(records, "m", None) == newer
    assert current_release(records, "m", "merged") == merged


def test_every_metric_is_defined_and_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "service.md").read_text()
    shown = Metrics().render().decode()
    for name, definition in DEFINITIONS.items():
        assert f"# HELP {name} " in shown
        assert f"| `{name}` | {definition.kind} | {definition.help} | {definition.action} |" in text

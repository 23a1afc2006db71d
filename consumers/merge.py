"""The releases of all shards as one component.

Post-processing of releases, so it costs no privacy: each shard's records are its own, so what holds
for each shard's releases holds for all of them together. The merged components are the leading
eigenvectors of the average of the shards' spread_j w_j w_j^T, weighted by the slots they have seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from .log import Log, Record
from .releases import Component, PublishedRelease, Source, make_record, parse_release

__all__ = ["Merger", "latest_releases", "merge_releases", "merged_record"]


def latest_releases(records: Iterable[Record], model: str) -> dict[int, PublishedRelease]:
    """Each task's newest release of a model. What is not a release of it is passed over."""
    latest: dict[int, PublishedRelease] = {}
    for record in records:
        try:
            release = parse_release(record.value)
        except ValueError:
            continue
        if release.model != model or not isinstance(release.task, int):
            continue
        known = latest.get(release.task)
        if known is None or release.batch >= known.batch:
            latest[release.task] = release
    return latest


def merge_releases(releases: Sequence[PublishedRelease]) -> PublishedRelease:
    """One release from those of several tasks; the same ones always give the same."""
    releases = sorted(releases, key=lambda r: int(r.task))
    first = releases[0]
    if any(r.features != first.features or r.model != first.model for r in releases):
        raise ValueError("releases of different models cannot be merged")
    # A shard that has learned nothing yet has no components.
    d, k = len(first.features), max(len(r.components) for r in releases)
    spreads = [c.spread for r in releases for c in r.components if c.spread is not None]
    # A shard whose last batch was skipped has no spread: it counts as the others do on average.
    usual = float(np.mean(spreads)) if spreads else 1.0
    known = len(spreads) == len(releases) * k
    M = np.zeros((d, d))
    for release in releases:
        for component in release.components:
            w = np.array([component.loadings[f] for f in first.features])
            spread = usual if component.spread is None else component.spread
            M += release.n_seen * max(spread, 0.0) * np.outer(w, w)
    total = sum(r.n_seen for r in releases)
    values, vectors = np.linalg.eigh(M / total)
    components = []
    for j in range(k):
        w = vectors[:, d - 1 - j]
        w = w * np.sign(w[np.argmax(np.abs(w))])
        loadings = dict(zip(first.features, w.tolist(), strict=True))
        along = float(values[d - 1 - j]) if known else None
        components.append(Component(loadings=loadings, spread=along))
    private = all(r.privacy.private for r in releases)
    worst = first.privacy.model_copy(
        update={
            "epsilon": max(r.privacy.epsilon for r in releases),
            "delta": max(r.privacy.delta for r in releases),
            "private": private,
        }
    )
    return PublishedRelease(
        model=first.model,
        task="merged",
        shards=first.shards,
        batch=sum(r.batch for r in releases),
        n_seen=total,
        features=first.features,
        components=tuple(components),
        range=None,
        step=None,
        sigma=None,
        skipped=False,
        reason=None,
        sources=tuple(Source(task=int(r.task), batch=r.batch, n_seen=r.n_seen) for r in releases),
        privacy=worst,
    )


def merged_record(records: Iterable[Record], model: str) -> Record | None:
    """The merged release of what is on the output topic; None before the first release."""
    latest = latest_releases(records, model)
    return make_record(merge_releases(list(latest.values()))) if latest else None


class Merger:
    """Follows the output topic and says when there is something new to merge.

    Batch numbers only grow, and all that is on the topic is read before the first answer, so the
    sum of the batch numbers tells any two merged releases apart.
    """

    def __init__(self, log: Log, topic: str, model: str) -> None:
        self._model = model
        self.current: Record | None = None
        self._latest: dict[int, PublishedRelease] = {}
        self._merged: tuple[Source, ...] = ()
        self._reader = log.reader(topic)
        bounds = self._reader.bounds(sorted(self._reader.partitions()))
        for record in log.scan(topic):
            self._take(record.value)
        # Bounds from before the scan: nothing is passed over, and seeing it twice does no harm.
        self._reader.assign({p: bound.end for p, bound in bounds.items()})

    def poll(self) -> Record | None:
        """A merged release to publish, if any task has released since the last."""
        for chunk in self._reader.read(0.0):
            for value in chunk.values:
                self._take(value or b"")
        sources = tuple(
            Source(task=t, batch=r.batch, n_seen=r.n_seen) for t, r in sorted(self._latest.items())
        )
        if not sources or sources == self._merged:
            return None
        return make_record(merge_releases(list(self._latest.values())))

    def published(self, record: Record) -> None:
        self.current = record
        self._merged = parse_release(record.value).sources

    def _take(self, value: bytes) -> None:
        try:
            release = parse_release(value)
        except ValueError:
            return
        if release.model != self._model:
            return
        if isinstance(release.task, str):
            self.published(make_record(release))
        elif release.task not in self._latest or release.batch > self._latest[release.task].batch:
            self._latest[release.task] = release

    def close(self) -> None:
        self._reader.close()

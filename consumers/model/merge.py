"""The releases of all shards as one model, put together in raw units.

Post-processing of releases, so it costs no privacy: each shard's records are its own, so what holds
for each shard's releases holds for all of them together.

Shards differ in centre, scales and deviations, so their loadings are weights of different things.
What a release says about raw records, feature by feature and for shard i, is

    mean       a_i = c + s m
    deviation  S_i = s r
    covariance S_i R_i S_i,  R_i = W V W^T + P E P,  P = I - W W^T

with V the `spread` along the components W. P E P is a guess of the rest, which no release tells: E
is diagonal, and such that every feature has variance 1 in R_i, as learned deviations say. Where
that would make a direction stronger than the components, the rest is more even. With given scales
the features do not have variance 1, and only the total is known, from the explained ratio: E is a
multiple of I. Without a ratio it is 0. Whatever the rest, R_i has the components that shard i has
released.

With p_i the share of the slots that shard i has seen, the records of all shards together have

    a = sum p_i a_i,   C = sum p_i (S_i R_i S_i + (a_i - a)(a_i - a)^T),

the covariance within shards plus that of their means. The merged components are the leading
eigenvectors of D^-1 C D^-1. D is the pooled deviation, D^2 = sum p_i (S_i^2 + (a_i - a)^2), unless
all shards agree on a deviation: then the scales were given, and the merged components are in their
units too. A feature in which no shard has seen any spread is left out, though centres may differ:
they are noisy.

The merged release follows the same formula as any other, with scale D and deviation 1. What any
shard took as it is, from its lowest to its highest bound, is not clamped: centre and clamp are the
middle and half the width of that interval, and the mean is (a - centre)/D. So the scores of a
merged release of one shard are the scores of that shard.

Shards that have not learned anything yet count for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stream_dppca.arrays import FloatArray

from ..protocols import Cluster, Message
from .releases import (
    Component,
    ReleaseDocument,
    Source,
    key_of,
    parse_release,
    release_message,
)

__all__ = ["Merger", "latest_releases", "merge_releases", "merged_message"]


def latest_releases(messages: Iterable[Message], model: str) -> dict[int, ReleaseDocument]:
    """Each task's newest release of a model. Other messages are ignored."""
    latest: dict[int, ReleaseDocument] = {}
    for message in messages:
        try:
            release = parse_release(message.value)
        except ValueError:
            continue
        if release.model != model or not isinstance(release.task, int):
            continue
        known = latest.get(release.task)
        if known is None or release.batch >= known.batch:
            latest[release.task] = release
    return latest


def merge_releases(releases: Sequence[ReleaseDocument]) -> ReleaseDocument:
    """Merge the releases of several tasks into one; equal input gives an equal result."""
    releases = sorted(releases, key=lambda r: int(r.task))
    first = releases[0]
    if any(r.features != first.features or r.model != first.model for r in releases):
        raise ValueError("releases of different models cannot be merged")
    shards = [_Shard.of(r) for r in releases if r.learned]
    if any(r.scale is not None for r in releases if r.learned):
        # Releases of version 1 do not say in which units their components are.
        shards = [_Shard.of(r) for r in releases if r.learned and r.scale is not None]
    warming_up = any(r.status == "warming_up" for r in releases)
    privacy = first.privacy.model_copy(
        update={
            "epsilon": max(r.privacy.epsilon for r in releases),
            "delta": max(r.privacy.delta for r in releases),
            "private": all(r.privacy.private for r in releases),
        }
    )
    known: dict[str, Any] = {"components": (), "status": "nothing_learned"}
    if shards:
        known = {**_combined(shards, first.features), "status": "learned"}
    elif warming_up:
        known["status"] = "warming_up"
    return ReleaseDocument(
        model=first.model,
        task="merged",
        shards=first.shards,
        batch=sum(r.batch for r in releases),
        n_seen=sum(r.n_seen for r in releases),
        warm_up_left=0 if shards else max(r.warm_up_left for r in releases),
        features=first.features,
        drift=any(r.drift for r in releases),
        range=None,
        step=None,
        sigma=None,
        skipped=not shards,
        reason=None if shards else "no shard has learned anything yet",
        sources=tuple(Source(task=int(r.task), batch=r.batch, n_seen=r.n_seen) for r in releases),
        round=max((r.round for r in releases if r.round), key=lambda r: r.end, default=None),
        subjects=_total([r.subjects for r in releases]),
        privacy=privacy,
        **known,
    )


def _total(subjects: Sequence[float | None]) -> float | None:
    """The noisy number of subjects of all shards, which have none in common."""
    known = [n for n in subjects if n is not None]
    return sum(known) if known else None


@dataclass(frozen=True, eq=False)
class _Shard:
    """The content of a release in terms of raw records."""

    n: float
    mean: FloatArray  #: a
    deviation: FloatArray  #: S
    low: FloatArray  #: values below are clamped
    high: FloatArray
    W: FloatArray  #: d x k
    spread: FloatArray  #: NaN if the last batch was skipped
    ratio: FloatArray  #: NaN if not known
    ratio_sd: FloatArray

    @classmethod
    def of(cls, release: ReleaseDocument) -> _Shard:
        def field(values: dict[str, float] | None, default: float) -> FloatArray:
            if values is None:
                return np.full(len(release.features), default)
            return np.array(release.array(values))

        c, s = field(release.center, 0.0), field(release.scale, 1.0)
        m, r = field(release.mean, 0.0), field(release.deviation, 1.0)
        reach = s * field(release.clamp, np.inf)
        W = np.array([release.array(w.loadings) for w in release.components]).T
        numbers = [
            (w.spread, w.explained_variance_ratio, w.explained_variance_ratio_sd)
            for w in release.components
        ]
        spread, ratio, ratio_sd = np.array(numbers, dtype=np.float64).T  # None becomes NaN
        # With privacy per subject all shards have the same number of places; the noisy number of
        # subjects is the number of places that are taken.
        n = release.n_seen if release.subjects is None else max(release.subjects, 1.0)
        return cls(n, c + s * m, s * r, c - reach, c + reach, W, spread, ratio, ratio_sd)

    def rest(self) -> float:
        """The average variance in each other direction; NaN if it is not known."""
        seen, k = int((self.deviation > 0).sum()), self.W.shape[1]
        with np.errstate(all="ignore"):
            total = self.spread[0] / self.ratio[0]
        left = max(float(total - self.spread.sum()), 0.0)
        return left / max(seen - k, 1) if np.isfinite(total) else float("nan")

    def correlation(self, spread: FloatArray, rest: float, *, unit: bool) -> FloatArray:
        """R: the covariance of standardised records, features of variance 1 if `unit`."""
        spread = np.maximum(spread, 0.0)
        within = (self.W * spread) @ self.W.T
        P = np.diag((self.deviation > 0).astype(float)) - self.W @ self.W.T
        even = rest * P
        if not unit or rest <= 0:
            return np.asarray(within + even)
        rough = (P * _diagonal(P, np.maximum(1 - np.diag(within), 0.0))) @ P
        strongest, weakest = float(np.linalg.eigvalsh(rough)[-1]), float(spread.min())
        share = 1.0
        if strongest > weakest:  # then a mixture has at most the strength of the components
            share = max(weakest - rest, 0.0) / (strongest - min(rest, weakest))
        return np.asarray(within + share * rough + (1 - share) * even)


def _combined(shards: Sequence[_Shard], features: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a merged release that hold what was learned."""
    p = np.array([shard.n for shard in shards], dtype=np.float64)
    p /= p.sum()
    a = sum(p_i * shard.mean for p_i, shard in zip(p, shards, strict=True))
    varies = np.any([shard.deviation > 0 for shard in shards], axis=0)
    D, given = _scaling(shards, p, a)
    # A shard whose last batch was skipped has no spread: it counts as the others do on average.
    usual = _average([shard.spread for shard in shards], 1.0)
    usual_rest = float(_average([np.array([shard.rest()]) for shard in shards], 0.0)[0])
    M = np.zeros((len(features), len(features)))
    for p_i, shard in zip(p, shards, strict=True):
        rest = shard.rest()
        spread = np.where(np.isnan(shard.spread), usual, shard.spread)
        rest = usual_rest if np.isnan(rest) else rest
        R = shard.correlation(spread, rest, unit=not given)
        S, apart = shard.deviation / D, np.where(varies, (shard.mean - a) / D, 0.0)
        M += p_i * (S[:, np.newaxis] * R * S + np.outer(apart, apart))
    values, vectors = np.linalg.eigh(M)
    k = shards[0].W.shape[1]
    total = float(np.trace(M))
    sds = [p_i * shard.ratio_sd for p_i, shard in zip(p, shards, strict=True)]
    ratio_sd = np.sqrt(np.sum(np.square(sds), axis=0))  # the noise of shards is independent
    known = not any(np.isnan(shard.spread).any() for shard in shards)
    known_total = known and not any(np.isnan(shard.rest()) for shard in shards) and total > 0
    components = []
    for j in range(k):
        w = vectors[:, -1 - j]
        w = w * np.sign(w[np.argmax(np.abs(w))])
        along = float(values[-1 - j])
        components.append(
            Component(
                loadings=_by_feature(features, w),
                spread=along if known else None,
                explained_variance_ratio=along / total if known_total else None,
                explained_variance_ratio_sd=float(ratio_sd[j])
                if known_total and np.isfinite(ratio_sd[j])
                else None,
            )
        )
    low = np.min([shard.low for shard in shards], axis=0)
    high = np.max([shard.high for shard in shards], axis=0)
    clamped = bool(np.isfinite(low).all() and np.isfinite(high).all())
    c = (low + high) / 2 if clamped else a
    return {
        "components": tuple(components),
        "center": _by_feature(features, c),
        "scale": _by_feature(features, D),
        "clamp": _by_feature(features, (high - low) / 2 / D) if clamped else None,
        "mean": _by_feature(features, (a - c) / D),
        "deviation": _by_feature(features, varies.astype(float)),
    }


def _diagonal(P: FloatArray, wanted: FloatArray) -> FloatArray:
    """E, not negative, so that the diagonal of P E P is about what is wanted: (P * P) E = wanted.

    By multiplicative corrections, which keep signs and converge quickly where there is a solution.
    """
    square = P * P
    E = wanted.copy()
    for _ in range(50):
        found = square @ E
        E = E * np.where(found > 0, wanted / np.where(found > 0, found, 1.0), 0.0)
    return np.asarray(E)


def _scaling(shards: Sequence[_Shard], p: FloatArray, a: FloatArray) -> tuple[FloatArray, bool]:
    """D, never 0: the deviation that all shards agree on, or else the pooled one.

    Also True if they agree on all deviations, which means that the scales were given.
    """
    S = np.array([shard.deviation for shard in shards])
    means = np.array([shard.mean for shard in shards])
    pooled = np.sqrt(p @ (S**2 + (means - a) ** 2))
    largest = S.max(axis=0)
    smallest = np.where(S > 0, S, np.inf).min(axis=0)
    given = (largest > 0) & np.isclose(smallest, largest, rtol=1e-9, atol=0.0)
    D = np.where(given, largest, pooled)
    return np.where(D > 0, D, 1.0), bool(given[largest > 0].all())


def _average(values: Sequence[FloatArray], default: float) -> FloatArray:
    """The mean over those shards whose values are known."""
    known = [value for value in values if not np.isnan(value).any()]
    return np.asarray(np.mean(known, axis=0)) if known else np.full_like(values[0], default)


def _by_feature(features: tuple[str, ...], values: FloatArray) -> dict[str, float]:
    return dict(zip(features, np.asarray(values).tolist(), strict=True))


def merged_message(messages: Iterable[Message], model: str) -> Message | None:
    """The merged release of all shards on the output topic; None before the first release."""
    latest = latest_releases(messages, model)
    return release_message(merge_releases(list(latest.values()))) if latest else None


class Merger:
    """Follows the output topic, and merges releases when there is a new one.

    Batch numbers only grow, and the whole topic is read before the first answer, so the sum of the
    batch numbers distinguishes any two merged releases.
    """

    def __init__(self, cluster: Cluster, topic: str, model: str) -> None:
        self._model = model
        self.current: Message | None = None
        self._latest: dict[int, ReleaseDocument] = {}
        self._merged: tuple[Source, ...] = ()
        self._reader = cluster.reader(topic)
        try:
            bounds = self._reader.bounds(sorted(self._reader.partitions()))
            for message in cluster.scan(topic):
                self._take(message.value)
            # These are bounds from before the scan: no release is missed, and reading one twice
            # does no harm.
            self._reader.assign({p: bound.end for p, bound in bounds.items()})
        except BaseException:
            self.close()
            raise

    def poll(self) -> Message | None:
        """A merged release to publish, if any task has released since the last."""
        for chunk in self._reader.read(0.0):
            for value in chunk.values:
                self._take(value or b"")
        sources = tuple(
            Source(task=t, batch=r.batch, n_seen=r.n_seen) for t, r in sorted(self._latest.items())
        )
        if not sources or sources == self._merged:
            return None
        return release_message(merge_releases(list(self._latest.values())))

    def published(self, message: Message) -> None:
        self.current = message
        self._merged = parse_release(message.value).sources

    def _take(self, value: bytes) -> None:
        try:
            release = parse_release(value)
        except ValueError:
            return
        if release.model != self._model:
            return
        if isinstance(release.task, str):
            # Kept as published: a release of another version stays what it is.
            self.published(Message(key_of(release.model, release.task), value))
        elif release.task not in self._latest or release.batch > self._latest[release.task].batch:
            self._latest[release.task] = release

    def close(self) -> None:
        self._reader.close()

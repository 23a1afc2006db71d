"""What releases state about themselves, on real streams: explained variances and limits.

    python -m benchmarks.stated --streams path/to/streams.npz --smd path/to/smd.npz [--seeds 3]

Two tables. *Explained variance*, in natural order: the share of stated values within two stated sds
of the truth, which is the eigenvalue of the correlation matrix of the whole stream over the number
of features. *Limits*, with 1 % of the records beyond: the share of later records that exceed the
limit of a release, over all releases that have one; shuffled, and of the next batch in natural
order. The noise is seeded, of the same law as in production.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from stream_dppca import Projector, Release

from .real import model
from .real_data import SETS, Array, DataSet, Missing, Paths, given, truth

COMPONENTS = (1, 3)
RATE = 0.01
#: Batches of limits have at most this many records.
MOST = 10_000
#: Later records of which the share beyond a limit is measured.
SAMPLE = 50_000


def explained(data: DataSet, X: Array, seeds: int) -> Array:
    """Stated value, stated sd and truth of every component of every run."""
    values, d, rows = truth(X).values, X.shape[1], []
    for k in COMPONENTS:
        for seed in range(seeds):
            pca = model(data, d, k, seed)
            pca.learn_array(X)
            last = pca.last_release
            if last is not None and last.explained_variance_ratio is not None:
                sds = last.explained_variance_ratio_sd or ()
                told = zip(last.explained_variance_ratio, sds, values / d, strict=False)
                rows += [list(row) for row in told]
    return np.array(rows).reshape(-1, 3)


def beyond(release: Release, later: Array) -> Iterator[float]:
    """Shares of later records beyond the limits of a release."""
    projector = Projector.from_release(release)
    for score, limits in release.limits.items():
        for limit in limits:
            if limit.rate == RATE:
                found = getattr(projector, score)(later)
                yield float(np.mean(found[np.isfinite(found)] > limit.value))


def limits(data: DataSet, X: Array, seeds: int, shuffled: bool) -> tuple[Array, float]:
    """Shares beyond all limits that were released, and the records before the first of them."""
    size = min(MOST, len(X) // 12)
    if shuffled:
        X = X[np.random.default_rng(1).permutation(len(X))]
    rows: list[list[float]] = []
    first = [np.nan]
    for k in COMPONENTS:
        for seed in range(seeds):
            pca = model(DataSet(data.name, "", data.load, size, ()), X.shape[1], k, seed)
            for start in range(0, len(X) - 2 * size + 1, size):
                pca.learn_array(X[start : start + size])
                later = X[start + size :][:SAMPLE] if shuffled else X[start + size :][:size]
                found = [] if pca.last_release is None else list(beyond(pca.last_release, later))
                if found and not any(rows[-1:]):
                    first.append(start + size)
                rows.append(found)
    return np.array([share for found in rows for share in found]), float(np.nanmin(first))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=Path)
    parser.add_argument("--smd", type=Path, default=Paths.smd)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    sets = SETS if arguments.streams is None else (*SETS, *given(arguments.streams))
    every: list[Array] = []
    shares: dict[bool, list[Array]] = {True: [], False: []}
    print(
        "| stream | explained: within 2 sd | median sd, error | shuffled: within .5 to 2 %, "
        "median, first after | next batch: median, 10 to 90 % |\n|---|---|---|---|---|"
    )
    for data in sets:
        try:
            X = data.load(Paths(smd=arguments.smd))
        except Missing:
            continue
        told = explained(data, X, arguments.seeds)
        every.append(told)
        off, sd = np.abs(told[:, 0] - told[:, 2]), told[:, 1]
        cells = [
            data.name,
            f"{np.mean(off <= 2 * sd):.0%}",
            f"{np.median(sd):.4f}, {np.median(off):.4f}",
        ]
        for shuffled in (True, False):
            share, first = limits(data, X, arguments.seeds, shuffled)
            shares[shuffled].append(share)
            good = np.mean((share >= 0.005) & (share <= 0.02)) if len(share) else np.nan
            if not len(share):
                cells.append("none")
            elif shuffled:
                cells.append(f"{good:.0%}, {np.median(share):.2%}, {first:,.0f}")
            else:
                low, high = np.quantile(share, [0.1, 0.9])
                cells.append(f"{np.median(share):.2%}, {low:.2%} to {high:.2%}")
        print(f"| {' | '.join(cells)} |", flush=True)
    told, share = np.concatenate(every), np.concatenate(shares[True])
    off, sd = np.abs(told[:, 0] - told[:, 2]), told[:, 1]
    print(
        f"| all | {np.mean(off <= 2 * sd):.0%} | {np.median(sd):.4f}, {np.median(off):.4f} | "
        f"{np.mean((share >= 0.005) & (share <= 0.02)):.0%}, {np.median(share):.2%} | |"
    )


if __name__ == "__main__":
    main()

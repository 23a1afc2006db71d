"""Measures whether one null can be seen in the time that a batch takes.

    python -m benchmarks.timing [--features 100] [--batch 50000] [--pairs 300]

Two batches that differ in one record, which in one of them is a null, are learned in random order,
many times in one process. The output is the AUC of the time of the releasing call: the probability
that a batch with the null takes longer than one without. 0.5 means that time reveals nothing; with
n pairs it scatters by about 0.4/sqrt(n). On a busy machine `--cpu`, the processor time, is steadier
than the time on the wall clock, and so the stronger attack.

With `--mutant` the batch with the null is copied first, as a careless implementation would do: the
experiment must detect that.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is loaded
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import gc
import time
from collections.abc import Callable

import numpy as np

from stream_dppca import DPPCA


def seconds(pca: DPPCA, X: np.ndarray, clock: Callable[[], float], mutant: bool) -> float:
    start = clock()
    if mutant and np.isnan(X[len(X) // 2, 0]):
        X = X.copy()
    pca.learn_array(X)
    return clock() - start


def auc(lower: np.ndarray, higher: np.ndarray) -> float:
    """Probability that a draw of `higher` is above one of `lower`."""
    ranks = np.searchsorted(np.sort(lower), higher)
    ties = np.searchsorted(np.sort(lower), higher, side="right")
    return float((ranks + ties).sum() / 2 / (len(lower) * len(higher)))


def measure(
    features: int,
    batch: int,
    pairs: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
    mutant: bool = False,
    seed: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Times without and with the null."""
    rng = np.random.default_rng(0)
    pca = DPPCA(features=range(features), epsilon=1.0, delta=1e-6, batch_size=batch, seed=seed)
    clean = rng.standard_normal((batch, features))
    spoiled = clean.copy()
    spoiled[batch // 2, 0] = np.nan
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(5):  # caches, the form of the first batches
        pca.learn_array(clean)
        pca.learn_array(spoiled)
    gc.disable()
    for _ in range(pairs):
        for which in rng.permutation(2):
            times[which].append(seconds(pca, (clean, spoiled)[which], clock, mutant))
    gc.enable()
    return np.array(times[0]), np.array(times[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--batch", type=int, default=50_000)
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--seed", type=int, help="noise of a generator: faster, steadier times")
    parser.add_argument("--cpu", action="store_true", help="measure time on the processor")
    parser.add_argument("--mutant", action="store_true", help="copy a batch that has the null")
    args = parser.parse_args()
    clock = time.thread_time if args.cpu else time.perf_counter
    without, with_null = measure(
        args.features, args.batch, args.pairs, clock=clock, mutant=args.mutant, seed=args.seed
    )
    print(
        f"d = {args.features}, B = {args.batch}: without {np.median(without) * 1e3:.3f} ms, with a "
        f"null {np.median(with_null) * 1e3:.3f} ms, AUC {auc(without, with_null):.3f} "
        f"({args.pairs} pairs)"
    )


if __name__ == "__main__":
    main()

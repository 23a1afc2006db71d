"""The paper's own claims, at sizes where its conditions hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.baselines import private_oja, step_search
from stream_dppca import InverseTime, PaperDPPCA

from .streams import Problem, SignPlusNoise, Spiked, sine

__all__ = ["claims"]

Array = NDArray[Any]
PAPER = {"K": 1.0, "a": 0.5, "C1": 8.0}


def claims(quick: bool, tick: Callable[[], None]) -> list[dict[str, Any]]:
    """`PaperDPPCA`, Private Oja and the step search. d = 5, delta = 1e-6."""
    seeds = range(2 if quick else 7)
    rows: list[dict[str, Any]] = []

    def median(claim: str, setting: str, run: Callable[[int], float]) -> None:
        errors = [run(seed) for seed in seeds]
        rows.append({"claim": claim, "setting": setting, "median": float(np.median(errors))})
        tick()

    def records(problem: Problem, n: int, seed: int) -> tuple[Array, Array]:
        stream = problem.stream(seed)
        return stream.draw(n), stream.components

    def by_paper(problem: Problem, n: int, B: int, c1: float) -> Callable[[int], float]:
        def run(seed: int) -> float:
            X, truth = records(problem, n, seed)
            pca = PaperDPPCA(
                features=tuple(range(problem.d)),
                epsilon=1.0,
                delta=1e-6,
                batch_size=B,
                step=InverseTime(c1, 1.0),
                seed=seed,
                **PAPER,
            )
            pca.learn_array(X)
            return sine(pca.components.T, truth)

        return run

    for n in (320_000, 1_280_000, 5_120_000) if not quick else (320_000,):
        median(
            "DP-PCA: sin falls as 1/n, then 1/sqrt n (Corollary 5.2), G(.1)",
            f"n = {n:g}",
            by_paper(Spiked(5), n, n // 8, 50.0),
        )
    for s in (0.3, 0.03, 0.003):
        median(
            "DP-PCA: sin vanishes with sigma (Example 4.1), n = 6.4e5",
            f"sigma = {s:g}",
            by_paper(SignPlusNoise(5, s), 640_000, 80_000, 50.0),
        )

    def by_private_oja(s: float, clip: float) -> Callable[[int], float]:
        def run(seed: int) -> float:
            X, truth = records(SignPlusNoise(5, s), 20_000, seed)
            fit = private_oja(
                X, epsilon=0.5, delta=1e-6, clip=clip, steps=InverseTime(3.0, 300.0), seed=seed
            )
            return sine(fit.components.T, truth)

        return run

    for s in (0.3, 0.03, 0.003):
        median(
            "Private Oja: sin does not vanish (Example 4.1), eps = .5, n = 2e4",
            f"sigma = {s:g}",
            by_private_oja(s, 1.5),
        )

    def by_search(n_trials: int) -> Callable[[int], float]:
        def run(seed: int) -> float:
            X, truth = records(Spiked(5), n_trials * 12_000 + 2000, seed)
            found = step_search(
                X,
                epsilon=1.0,
                delta=1e-6,
                run_size=10_000,
                score_size=2000,
                clip=3.0,
                batch_size=1250,
                seed=seed,
            )
            return sine(found.fit.components.T, truth)

        return run

    for trials in (1, 9, 25):
        median(
            "Step search: the best of more schedules, each on 1e4 fresh records, G(.1)",
            f"{trials} schedules",
            by_search(trials),
        )
    return rows

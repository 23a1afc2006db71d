"""The problems on which accuracy is measured: `CELLS`, and `DRIFTS` for streams that change."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .streams import FashionMNIST, Problem, SignPlusNoise, Spectrum, Spiked

__all__ = ["CELLS", "DRIFTS", "Cell", "Drift"]


@dataclass(frozen=True)
class Cell:
    """A problem, a size, a budget."""

    group: str
    problem: Problem
    n: int
    batch_size: int
    epsilon: float = 1.0
    delta: float = 1e-6
    k: int = 1
    target: float | None = None  #: ratio to Analyze-Gauss
    most: float | None = None  #: largest median loss
    loss: str = "sine"  #: or "variance": the share of it that is missed
    seeds: int = 20
    #: Seeds on which Analyze-Gauss, the paper's method and others that are slow are run.
    slow_seeds: int = 20
    note: str = ""

    @property
    def name(self) -> str:
        parts = [self.problem.label, f"d={self.problem.d}", f"n={self.n:g}", f"B={self.batch_size}"]
        parts += [f"k={self.k}"] if self.k > 1 else []
        parts += [f"eps={self.epsilon:g}"] if self.epsilon != 1 else []
        return " ".join(parts)

    @property
    def key(self) -> str:
        return f"{self.group}: {self.name}"


def _targets() -> list[Cell]:
    rows: list[tuple[Problem, int, int, float]] = [
        (Spiked(10, 0.1), 100_000, 3125, 1.15),
        (Spiked(50, 0.1), 20_000, 2500, 1.4),
        (Spiked(50, 0.5), 200_000, 6250, 1.2),
        (Spiked(200, 0.1), 100_000, 6250, 1.45),
        (Spiked(1000, 0.1), 100_000, 6250, 0.8),
        (SignPlusNoise(50, 1.0), 100_000, 6250, 1.45),
        (SignPlusNoise(200, 0.01), 100_000, 6250, 0.85),
        (SignPlusNoise(200, 0.001), 100_000, 6250, 0.12),
    ]
    seeds = {1000: (20, 8)}
    return [
        Cell("target", problem, n, B, target=target, seeds=all_, slow_seeds=slow)
        for problem, n, B, target in rows
        for all_, slow in [seeds.get(problem.d, (20, 20))]
    ]


def _spiked(d: int, k: int = 1, l2: float = 0.1) -> tuple[float, ...]:
    return (1.0,) * k + (l2,) * (d - k)


def _graded(d: int, k: int) -> tuple[float, ...]:
    return (*np.linspace(1, 0.5, k).tolist(), *[0.1] * (d - k))


def _power_law(d: int, power: float) -> tuple[float, ...]:
    return tuple((np.arange(1.0, d + 1) ** -power).tolist())


def _robustness() -> list[Cell]:
    n = 100_000
    cells = [
        Cell("epsilon", Spiked(d), n, B, epsilon=epsilon)
        for d, B in ((50, 3125), (200, 6250))
        for epsilon in (0.2, 0.5, 4.0)
    ]
    for law in ("Student t4", "log-normal", "skewed", "discrete"):
        for d in (50, 200):
            cells.append(Cell("law", Spectrum(_spiked(d), law, factors=law), n, 6250))
    for scale in (1e-6, 1e6):
        for d in (50, 200):
            problem = Spectrum(_spiked(d), f"G(.1) x {scale:g}", scale=scale)
            cells.append(Cell("scale", problem, n, 6250, seeds=10, slow_seeds=10))
    cells += [
        Cell("components", problem, n, 6250, k=k, seeds=10, slow_seeds=10)
        for d in (50, 200)
        for k in (2, 5, 10)
        for problem in (Spectrum(_spiked(d, k), "flat"), Spectrum(_graded(d, k), "graded"))
    ]
    # All records in one batch, which may be known to be the only one.
    cells += [
        Cell("one batch", Spiked(d), n_all, n_all, target=target, seeds=seeds, slow_seeds=seeds)
        for d, n_all, target, seeds in ((10, 20_000, 1.5, 20), (50, n, 1.25, 20), (200, n, 1.25, 8))
    ]
    cells += [
        Cell("one batch", problem, n, n, k=k, seeds=3, slow_seeds=3)
        for k in (5, 10)
        for problem in (Spectrum(_spiked(200, k), "flat"), Spectrum(_graded(200, k), "graded"))
    ]
    cells += [
        Cell(
            "components",
            Spectrum(_power_law(d, 1.0), "1/i^1"),
            n,
            6250,
            k=5,
            seeds=10,
            slow_seeds=10,
        )
        for d in (50, 200)
    ]
    cells += [
        Cell(
            "near tie",
            Spectrum((1.0, l2, *[0.1] * (d - 2)), f"1, {l2:g}, .1 .."),
            n,
            6250,
            loss="variance",
        )
        for d in (50, 200)
        for l2 in (0.95, 1.0)
    ]
    cells += [
        Cell("power law", Spectrum(_power_law(d, power), f"1/i^{power:g}"), n, 6250)
        for d in (50, 200)
        for power in (1.0, 2.0)
    ]
    cells += [
        Cell("small batches", Spiked(50), 20_000, 625),
        Cell("small batches", Spiked(20), 20_000, 600, epsilon=0.5),
        Cell("small batches", Spiked(200), 100_000, 1563),
        Cell("small batches", SignPlusNoise(200, 0.01), 100_000, 1563),
        Cell("few batches", Spiked(50), 100_000, 50_000),
        Cell("few batches", Spiked(200), 100_000, 50_000),
    ]
    return cells


def _curves() -> list[Cell]:
    """Cells for points of the figures that no other cell has."""
    common = {"seeds": 10, "slow_seeds": 10}
    cells = [
        Cell("curve n", Spiked(50), n, n // 16, **common)
        for n in (10_000, 30_000, 100_000, 300_000, 1_000_000)
    ]
    cells += [Cell("curve d", Spiked(d), 100_000, 6250, **common) for d in (10, 20, 50, 100, 150)]
    cells += [Cell("curve d", Spiked(500), 100_000, 6250, seeds=8, slow_seeds=5)]
    cells += [
        Cell("curve s", SignPlusNoise(200, s), 100_000, 6250, **common)
        for s in (1.0, 0.3, 0.1, 0.03)
    ]
    cells += [Cell("curve eps", Spiked(50), 100_000, 3125, **common)]
    return cells


def _many_features() -> list[Cell]:
    """Slowly falling spectra with very many features."""
    rows: list[tuple[Problem, int, float]] = []
    for d, one, five, spiked in (
        (300, 0.015, 0.07, 0.035),
        (512, 0.022, 0.08, 0.052),
        (784, 0.024, 0.10, 0.078),
    ):
        slow = Spectrum(_power_law(d, 1.0), "1/i^1")
        rows += [(slow, 1, one), (slow, 5, five), (Spiked(d), 1, spiked)]
    cells = [
        Cell("many features", problem, 100_000, 6250, k=k, most=most, seeds=10, slow_seeds=1)
        for problem, k, most in rows
    ]
    if FashionMNIST.FILE.exists():
        cells += [
            Cell(
                "many features",
                FashionMNIST(),
                60_000,
                3750,
                k=k,
                most=most,
                seeds=10,
                slow_seeds=1,
            )
            for k, most in ((1, 0.045), (5, 0.16))
        ]
    return cells


CELLS: tuple[Cell, ...] = (*_targets(), *_many_features(), *_robustness(), *_curves())


@dataclass(frozen=True)
class Drift:
    """A stream that changes: the error is followed batch by batch."""

    name: str
    d: int
    batch_size: int
    angle: Callable[[int], float]  #: of the direction, in batch number 0, 1, ...
    scale: Callable[[int], float] | None = None
    batches: int = 40
    change: int | None = None  #: the batch with which it changes, if it changes once
    seeds: int = 10

    @property
    def key(self) -> str:
        return f"drift: {self.name} d={self.d} B={self.batch_size}"


DRIFTS: tuple[Drift, ...] = tuple(
    drift
    for d, B in ((50, 2500), (200, 6250))
    for drift in (
        Drift("jump 90 degrees", d, B, lambda t: math.pi / 2 * (t >= 20), change=20),
        Drift("jump 30 degrees", d, B, lambda t: math.pi / 6 * (t >= 20), change=20),
        Drift("turn 0.1 rad per batch", d, B, lambda t: 0.1 * t),
        Drift("turn 0.03 rad per batch", d, B, lambda t: 0.03 * t),
        Drift("turn 0.003 rad per batch", d, B, lambda t: 0.003 * t),
        Drift("scale x 1000", d, B, lambda t: 0.0, lambda t: 1000.0 if t >= 20 else 1.0, change=20),
        Drift("scale / 1000", d, B, lambda t: 0.0, lambda t: 0.001 if t >= 20 else 1.0, change=20),
    )
)

"""How accurate is `DPPCA`? Against every private PCA there is, on problems with a known truth.

    python -m benchmarks.accuracy                 # everything, under an hour on one core
    python -m benchmarks.accuracy --quick         # two minutes, three seeds, nothing to quote
    python -m benchmarks.accuracy --only 'target*' --seeds 40
    python -m benchmarks.accuracy --ours          # `DPPCA` again, what the others found is kept
    python -m benchmarks.accuracy --render        # tables and figures again, from the JSON

`CELLS` and `DRIFTS` say what is measured, `METHODS` with what, `main` runs them. `DPPCA` gets
epsilon, delta, features and batch size, and nothing else. All others get what they need **free**:
each is run with several settings on the same data, and the setting with the best median counts.
The noise is seeded, of the same law as in production.

Results: `accuracy.json` and `accuracy.md` in `--out`; with `--docs` also `docs/accuracy.md`,
between its markers, and `docs/figures`.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: one core, fair and repeatable

import argparse
import fnmatch
import json
import math
import platform
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from scipy.sparse.linalg import eigsh

from stream_dppca import DPPCA, InverseTime, plan
from stream_dppca.baselines import private_oja, step_search
from stream_dppca.calibration import gaussian_mu
from stream_dppca.errors import BatchSizeError
from stream_dppca.noise import make_noise

from .figures import draw, readme_table, render, write_docs
from .streams import (
    LARGE,
    FashionMNIST,
    Problem,
    SignPlusNoise,
    Spectrum,
    Spiked,
    captured,
    sine,
)

Array = NDArray[Any]
#: What one method found with each of its settings.
Found = dict[str, Array]

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"


# What is measured


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
    center: str = "none"
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
        parts += ["pairs"] if self.center == "pairs" else []
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
        (Spiked(4000, 0.1), 100_000, 12500, 0.5),
        (SignPlusNoise(50, 1.0), 100_000, 6250, 1.45),
        (SignPlusNoise(200, 0.01), 100_000, 6250, 0.85),
        (SignPlusNoise(200, 0.001), 100_000, 6250, 0.12),
    ]
    seeds = {1000: (20, 8), 4000: (7, 3)}
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
    mixed = tuple(np.logspace(12, -12, 50).tolist())
    cells.append(
        Cell("scale", Spectrum(mixed, "features 1e-6 .. 1e6", rotate=False), n, 6250, seeds=20)
    )
    cells += [
        Cell("mean", Spectrum(_spiked(d), "G(.1) + mean 3", mean=3.0), n, 6250, center="pairs")
        for d in (50, 200)
    ]
    cells += [
        Cell("components", problem, n, 6250, k=k, seeds=10, slow_seeds=10)
        for d in (50, 200)
        for k in (2, 5, 10)
        for problem in (Spectrum(_spiked(d, k), "flat"), Spectrum(_graded(d, k), "graded"))
    ]
    cells += [
        Cell("components", Spectrum(_power_law(d, 1.0), "1/i^1"), n, 6250, k=5, seeds=10,
             slow_seeds=10)
        for d in (50, 200)
    ]  # fmt: skip
    cells += [
        Cell("near tie", Spectrum((1.0, l2, *[0.1] * (d - 2)), f"1, {l2:g}, .1 .."), n, 6250,
             loss="variance")
        for d in (50, 200)
        for l2 in (0.95, 1.0)
    ]  # fmt: skip
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
    """For the figures, where no other cell has the point."""
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
    """Slow spectra with more features than records can be spared for."""
    rows: list[tuple[Problem, int, float]] = []
    for d, one, five, spiked in ((300, 0.015, 0.07, 0.035), (512, 0.022, 0.08, 0.052),
                                 (784, 0.024, 0.10, 0.078)):  # fmt: skip
        slow = Spectrum(_power_law(d, 1.0), "1/i^1")
        rows += [(slow, 1, one), (slow, 5, five), (Spiked(d), 1, spiked)]
    cells = [
        Cell("many features", problem, 100_000, 6250, k=k, most=most, seeds=5, slow_seeds=1)
        for problem, k, most in rows
    ]
    if FashionMNIST.FILE.exists():
        cells += [
            Cell("many features", FashionMNIST(), 60_000, 3750, k=k, most=most, seeds=5,
                 slow_seeds=1)
            for k, most in ((1, 0.045), (5, 0.16))
        ]  # fmt: skip
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
    change: int | None = None  #: the batch with which it changes, where it does so once
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
        Drift("turn 0.1 rad a batch", d, B, lambda t: 0.1 * t),
        Drift("turn 0.03 rad a batch", d, B, lambda t: 0.03 * t),
        Drift("turn 0.003 rad a batch", d, B, lambda t: 0.003 * t),
        Drift("scale x 1000", d, B, lambda t: 0.0, lambda t: 1000.0 if t >= 20 else 1.0, change=20),
        Drift("scale / 1000", d, B, lambda t: 0.0, lambda t: 0.001 if t >= 20 else 1.0, change=20),
    )
)


# With what

QUANTILES = (0.5, 0.7, 0.9, 0.97, 1.0)  #: of the norms: the five clips given to Analyze-Gauss


class Data:
    """One seed of a cell: the records, and what several methods need of them."""

    def __init__(self, cell: Cell, seed: int) -> None:
        self.cell, self.seed = cell, seed
        stream = cell.problem.stream(seed)
        self.X = stream.draw(cell.n)
        self.truth = stream.components
        #: What the other methods work with: the records, or differences of neighbours.
        self.rows = self.X
        if cell.center == "pairs":
            self.rows = (self.X[1::2] - self.X[::2]) * math.sqrt(0.5)
        self.n, self.d = self.rows.shape
        self.rng = np.random.default_rng([seed, 4])
        self.mu = gaussian_mu(cell.epsilon, cell.delta)
        self._moments: Moments | None = None

    @property
    def moments(self) -> Moments:
        if self._moments is None:
            self._moments = Moments(self.rows)
        return self._moments

    def gradient_norms(self) -> Array:
        """At the truth: what a clip for gradients is chosen from, for those who get it free."""
        rows = self.rows[:20_000]
        P = rows @ self.truth[:, : self.cell.k].astype(rows.dtype)
        return np.linalg.norm(rows, axis=1) * np.linalg.norm(P, axis=1)


class Moments:
    """Second moments of the records clipped at each of `QUANTILES`, in two passes for all five.

    Grouped by norm, a record below the clip adds x x^T and one above it clip^2 u u^T, u = x/||x||.
    """

    def __init__(self, X: Array) -> None:
        self.n, d = X.shape
        norms = np.sqrt(np.einsum("ij,ij->i", X, X))
        self.clips = np.quantile(norms, QUANTILES)
        group = np.searchsorted(self.clips[:-1], norms)
        plain = np.zeros((len(QUANTILES), d, d), X.dtype)
        unit = np.zeros_like(plain)
        for g in range(len(QUANTILES)):
            members = np.flatnonzero(group == g)
            for chunk in np.array_split(members, max(1, len(members) // 16384)):
                rows = X[chunk]
                plain[g] += rows.T @ rows
                if g > 0 or d <= LARGE:  # the first group is needed for unit norms only
                    rows /= np.maximum(norms[chunk], 1e-300)[:, None].astype(X.dtype)
                    unit[g] += rows.T @ rows
        plain /= self.n
        unit /= self.n
        self.whole = plain.sum(axis=0)
        self.unit_norm = unit.sum(axis=0) if d <= LARGE else None
        below, above = np.cumsum(plain, axis=0), np.cumsum(unit[::-1], axis=0)[::-1]
        self.clipped = [
            below[q] + (above[q + 1] * X.dtype.type(clip**2) if q + 1 < len(QUANTILES) else 0)
            for q, clip in enumerate(self.clips)
        ]


def top(S: Array, k: int) -> Array:
    """Top eigenvectors of a symmetric matrix."""
    if len(S) >= 500:
        start = np.random.default_rng(0).standard_normal(len(S)).astype(S.dtype)
        return eigsh(S, k=k, which="LA", v0=start, tol=1e-5)[1][:, ::-1]
    return np.linalg.eigh(S)[1][:, : -k - 1 : -1]


def dppca(data: Data) -> Found:
    cell = data.cell
    pca = DPPCA(
        features=tuple(range(data.d)),
        epsilon=cell.epsilon,
        delta=cell.delta,
        batch_size=cell.batch_size,
        n_components=cell.k,
        center=cell.center,
        scales=None if cell.center != "mean" else "learn",
        seed=1000 + data.seed,
    )
    pca.learn_array(data.X)
    return {"default": pca.components.T}


def eigh(data: Data) -> Found:
    return {"": top(data.moments.whole, data.cell.k)}


def analyze_gauss(data: Data) -> Found:
    """The tight form of `stream_dppca.baselines.analyze_gauss`, five clips on the same noise."""
    E, m = symmetric_noise(data), data.moments
    return {
        f"clip {q:g}": top(S + E * S.dtype.type(math.sqrt(2) * clip**2 / (data.n * data.mu)), k)
        for k in [data.cell.k]
        for q, clip, S in zip(QUANTILES, m.clips, m.clipped, strict=True)
    }


def analyze_gauss_unit(data: Data) -> Found:
    S = data.moments.unit_norm
    if S is None:
        return {}
    E = symmetric_noise(data) * S.dtype.type(math.sqrt(2) / (data.n * data.mu))
    return {"": top(S + E, data.cell.k)}


def symmetric_noise(data: Data) -> Array:
    """Isometric in the Frobenius norm: sd 1 on the diagonal, 1/sqrt 2 off it."""
    E = data.rng.standard_normal((data.d, data.d), dtype=data.rows.dtype)
    E += E.T.copy()
    E /= 2
    return E


def power_method(data: Data) -> Found:
    """The noisy power method: clips on rows (from the moments) and on gradients, 2 to 10 rounds."""
    k, found = data.cell.k, {}
    noise = make_noise(data.seed)
    start = np.linalg.qr(noise.direction(data.d, k))[0]
    for rounds in (2, 3, 5, 8, 12):
        mu = data.mu / math.sqrt(rounds)
        for q, clip, S in zip(QUANTILES, data.moments.clips, data.moments.clipped, strict=True):
            sd = math.sqrt(min(k, 2)) * clip**2 / (data.n * mu)
            W = start
            for _ in range(rounds):
                Z = data.rng.standard_normal((data.d, k))
                W = np.linalg.qr(S @ W.astype(S.dtype) + sd * Z)[0]
            found[f"rows {q:g}, {rounds} rounds"] = W
    quantiles = (0.5, 0.75, 0.95)
    clips = np.quantile(data.gradient_norms(), quantiles)
    each = (2, 3, 5, 8) if k == 1 else (3, 6)
    settings = [(float(clip), rounds) for rounds in each for clip in clips]
    runs = gradient_power(data.rows, start, settings, data.mu, data.rng)
    for (_, rounds), q, W in zip(settings, quantiles * len(each), runs, strict=True):
        found[f"gradients {q:g}, {rounds} rounds"] = W
    return found


def gradient_power(
    X: Array,
    start: Array,
    settings: list[tuple[float, int]],
    mu: float,
    rng: np.random.Generator,
) -> list[Array]:
    """The noisy power method with clipped gradients, all (clip, rounds) abreast."""
    n, (d, k) = len(X), start.shape
    norms = np.sqrt(np.einsum("ij,ij->i", X, X))
    Ws = [start] * len(settings)
    for done in range(max(rounds for _, rounds in settings)):
        running = [i for i, (_, rounds) in enumerate(settings) if rounds > done]
        clips = np.array([settings[i][0] for i in running], dtype=X.dtype)
        P = (X @ np.hstack([Ws[i] for i in running]).astype(X.dtype)).reshape(n, len(running), k)
        length = np.sqrt(np.einsum("ncj,ncj->nc", P, P)) if k > 1 else np.abs(P[:, :, 0])
        length *= norms[:, None]
        P *= np.minimum(1, clips / np.maximum(length, 1e-30))[:, :, None]
        totals = (X.T @ P.reshape(n, -1)).reshape(d, len(running), k)
        for c, i in enumerate(running):
            clip, rounds = settings[i]
            noise = 2 * clip * math.sqrt(rounds) / mu * rng.standard_normal((d, k))
            Ws[i] = np.linalg.qr(totals[:, c] + noise)[0]
    return Ws


def streaming_oja(data: Data) -> Found:
    """Clipped minibatch Oja, Eq. (6): three clips, twelve schedules, two to seven batch sizes."""
    if data.cell.k > 1:
        return {}
    quantiles = (0.5, 0.8, 0.95)
    clips = np.quantile(data.gradient_norms(), quantiles)
    scale = float(data.cell.problem.eigenvalues()[0])
    schedules = [(c1 / scale, c2) for c1 in (1, 2, 4, 8, 32, 512) for c2 in (1.0, 8.0)]
    found: Found = {}
    sizes = {data.n // 8, data.n // 4}  # mostly the best
    if data.cell.group == "target":
        B, most = data.cell.batch_size, data.n // 2
        sizes |= {B // 4, B, min(2 * B, most), min(4 * B, most), most}
    for size in sorted(sizes):
        W = oja_abreast(data.rows, size, clips, schedules, data.mu, data.seed)
        for c, q in enumerate(quantiles):
            for s, (c1, c2) in enumerate(schedules):
                name = f"clip {q:g}, B {size}, step {c1 * scale:g}/({c2:g} + t)"
                found[name] = W[:, [c * len(schedules) + s]]
    return found


def oja(data: Data) -> Found:
    """Not private: minibatches of 100, eight schedules."""
    if data.cell.k > 1:
        return {}
    values = data.cell.problem.eigenvalues()
    gap = max(float(values[0] - values[1]), 0.05 * float(values[0]))
    schedules = [(c / gap, c2) for c in (1, 1.5, 2.5, 5) for c2 in (5.0, 50.0)]
    W = oja_abreast(data.rows, 100, np.array([math.inf]), schedules, math.inf, data.seed)
    return {f"{c1 * gap:g}/({c2:g} + t) / gap": W[:, [i]] for i, (c1, c2) in enumerate(schedules)}


def oja_abreast(
    X: Array, size: int, clips: Array, schedules: list[tuple[float, float]], mu: float, seed: int
) -> Array:
    """`stream_dppca.baselines.clipped_oja` with many settings at once, a column each."""
    noise = make_noise(seed)
    w = np.linalg.qr(noise.direction(X.shape[1], 1))[0]
    clip = np.repeat(clips, len(schedules))
    c1, c2 = np.tile(np.array(schedules), (len(clips), 1)).T
    W = np.repeat(w, len(clip), axis=1)
    for t in range(1, len(X) // size + 1):
        rows = X[(t - 1) * size : t * size]
        P = rows @ W.astype(X.dtype)
        if math.isfinite(mu):
            length = np.abs(P)
            length *= np.sqrt(np.einsum("ij,ij->i", rows, rows))[:, None]
            P *= np.minimum(1, clip.astype(X.dtype) / np.maximum(length, 1e-30))
            total = (rows.T @ P).astype(np.float64) / (2 * clip)
            total = noise.gaussian(total, sensitivity=1.0, mu=mu) * (2 * clip)
        else:
            total = rows.T @ P
        W = W + (c1 / (c2 + t)) / size * total
        W /= np.linalg.norm(W, axis=0)
    return W


def paper(data: Data) -> Found:
    """`method="paper"` with a Gaussian tail: eight batches, or as many as its minimum allows."""
    if data.cell.k > 1 or data.cell.center != "none":
        return {}
    scale = float(data.cell.problem.eigenvalues()[0])
    found: Found = {}
    for c1 in (1.0, 8.0):
        size = data.n // 8
        while True:
            try:
                pca = DPPCA(
                    features=tuple(range(data.d)),
                    epsilon=data.cell.epsilon,
                    delta=data.cell.delta,
                    batch_size=size,
                    method="paper",
                    K=1.0,
                    a=0.5,
                    C1=8.0,
                    step=InverseTime(c1 / scale, 1.0),
                    seed=1000 + data.seed,
                )
                break
            except BatchSizeError:
                if size == data.n:
                    return {}
                size = min(2 * size, data.n)
        pca.learn_array(data.X)
        found[f"K 1, a 0.5, C1 8, B {size}, step {c1:g}/(1 + t)"] = pca.components.T
    return found


#: Name, what it is, on how many seeds.
METHODS: dict[str, Callable[[Data], Found]] = {
    "DPPCA": dppca,
    "Analyze-Gauss": analyze_gauss,
    "Analyze-Gauss, unit norm": analyze_gauss_unit,
    "noisy power method": power_method,
    "clipped Oja": streaming_oja,
    "paper": paper,
    "eigh": eigh,
    "Oja": oja,
}
SLOW = {"Analyze-Gauss", "Analyze-Gauss, unit norm", "noisy power method", "eigh", "paper"}
#: Only where it is asked for: the literal constants need larger problems, see `claims`.
TARGETS_ONLY = {"paper"}
#: With many features the others take too long.
MANY_FEATURES = {"DPPCA", "Analyze-Gauss"}
PAPER_SEEDS = 3


# Running


def run_cell(
    cell: Cell, tick: Callable[[], None], stored: dict[str, Any] | None = None
) -> dict[str, Any]:
    """All methods on all seeds of a cell; with stored results of the same seeds, ours alone."""
    started = time.perf_counter()
    kept = stored is not None and stored["seeds"] == cell.seeds
    run = {"DPPCA": METHODS["DPPCA"]} if kept else METHODS
    errors: dict[str, dict[str, list[float]]] = {}
    seconds: dict[str, float] = {}
    for seed in range(cell.seeds):
        data = Data(cell, seed)
        for name, method in run.items():
            limit = cell.slow_seeds if name in SLOW else cell.seeds
            if name in TARGETS_ONLY:
                limit = PAPER_SEEDS if cell.group == "target" else 0
            if cell.group == "many features" and name not in MANY_FEATURES:
                limit = 0
            if seed >= limit:
                continue
            before = time.perf_counter()
            for setting, W in method(data).items():
                loss = (
                    sine(W, data.truth)
                    if cell.loss == "sine"
                    else captured(W, cell.problem, data.truth)
                )
                errors.setdefault(name, {}).setdefault(setting, []).append(loss)
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - before
        tick()
    methods = {name: summary(by_setting) for name, by_setting in errors.items()}
    for name, taken in seconds.items():
        if name in methods:
            methods[name]["seconds"] = round(taken / len(methods[name]["errors"]), 3)
    if stored is not None and kept:
        methods = stored["methods"] | methods
    return {
        "group": cell.group,
        "name": cell.name,
        "problem": cell.problem.label,
        "d": cell.problem.d,
        "n": cell.n,
        "batch_size": cell.batch_size,
        "epsilon": cell.epsilon,
        "delta": cell.delta,
        "k": cell.k,
        "center": cell.center,
        "loss": cell.loss,
        "seeds": cell.seeds,
        "target": cell.target,
        "most": cell.most,
        "methods": methods,
        "plan": planned(cell),
        "seconds": round(time.perf_counter() - started, 1),
    }


def summary(by_setting: dict[str, list[float]]) -> dict[str, Any]:
    """The setting with the best median."""
    setting = min(by_setting, key=lambda s: float(np.median(by_setting[s])))
    errors = by_setting[setting]
    return {
        "median": float(np.median(errors)),
        "worst": max(errors),
        "setting": setting,
        "settings": len(by_setting),
        "errors": errors,
    }


def planned(cell: Cell) -> float | None:
    """What `plan()` expects at the end of the stream, told the spectrum; k = 1 and sines only."""
    if cell.k > 1 or cell.loss != "sine":
        return None
    values = cell.problem.eigenvalues()
    expected = plan(
        d=cell.problem.d,
        epsilon=cell.epsilon,
        delta=cell.delta,
        batch_size=cell.batch_size,
        center=cell.center,
        trace_ratio=float(values.sum() / values[0]),
        gap=float((values[0] - values[1]) / values[0]),
        range_ratio=cell.problem.range_ratio,
    ).expected_error
    records, sines = np.log(np.array(expected)).T
    return float(np.exp(np.interp(math.log(cell.n), records, sines)))


def run_drift(drift: Drift, tick: Callable[[], None]) -> dict[str, Any]:
    """Median error after each batch. For a jump also that of an estimator started at the jump."""
    B = drift.batch_size
    traces, fresh = [], []
    for seed in range(drift.seeds):
        problem = Spiked(
            drift.d,
            path=lambda i: drift.angle(i // B),
            scale=None if drift.scale is None else lambda i: drift.scale(i // B),
        )
        stream = problem.stream(seed)
        pcas = [(0, _default(drift, seed), traces)]
        if drift.change is not None:
            pcas.append((drift.change, _default(drift, seed + 500), fresh))
        for _, _, where in pcas:
            where.append([])
        for t in range(drift.batches):
            X = stream.draw(B)
            for begin, pca, where in pcas:
                if t >= begin:
                    pca.learn_array(X)
                    where[-1].append(sine(pca.components.T, stream.components))
        tick()
    trace = np.median(traces, axis=0)
    result: dict[str, Any] = {
        "group": "drift",
        "name": drift.key.removeprefix("drift: "),
        "change": drift.change,
        "seeds": drift.seeds,
        "trace": trace.tolist(),
    }
    if drift.change is None:
        result["steady"] = float(np.median(trace[drift.batches // 2 :]))
        result["worst"] = float(np.max(trace[drift.batches // 2 :]))
    else:
        after, restarted = trace[drift.change :], np.median(fresh, axis=0)
        result["fresh"] = restarted.tolist()
        for level in (0.3, 0.1):
            result[f"to {level:g}"] = _first(after, level)
            result[f"fresh to {level:g}"] = _first(restarted, level)
        result["before"], result["end"] = float(trace[drift.change - 1]), float(trace[-1])
    return result


def _default(drift: Drift, seed: int) -> DPPCA:
    return DPPCA(
        features=tuple(range(drift.d)),
        epsilon=1.0,
        delta=1e-6,
        batch_size=drift.batch_size,
        center="none",
        scales=None,
        seed=1000 + seed,
    )


def _first(trace: Iterable[float], level: float) -> int | None:
    """Batches until the error is below the level and stays there."""
    trace = list(trace)
    above = [i for i, error in enumerate(trace, start=1) if error > level]
    return None if above and above[-1] == len(trace) else (above[-1] + 1 if above else 1)


# The paper's own claims, at sizes where its conditions hold

PAPER = {"method": "paper", "K": 1.0, "a": 0.5, "C1": 8.0}


def claims(quick: bool, tick: Callable[[], None]) -> list[dict[str, Any]]:
    """`method="paper"`, Private Oja and the step search. d = 5, delta = 1e-6."""
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
            pca = DPPCA(
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
        median("DP-PCA: sin falls as 1/n, then 1/sqrt n (Corollary 5.2), G(.1)", f"n = {n:g}",
               by_paper(Spiked(5), n, n // 8, 50.0))  # fmt: skip
    for s in (0.3, 0.03, 0.003):
        median("DP-PCA: sin vanishes with sigma (Example 4.1), n = 6.4e5", f"sigma = {s:g}",
               by_paper(SignPlusNoise(5, s), 640_000, 80_000, 50.0))  # fmt: skip

    def by_private_oja(s: float, clip: float) -> Callable[[int], float]:
        def run(seed: int) -> float:
            X, truth = records(SignPlusNoise(5, s), 20_000, seed)
            fit = private_oja(
                X, epsilon=0.5, delta=1e-6, clip=clip, steps=InverseTime(3.0, 300.0), seed=seed
            )
            return sine(fit.components.T, truth)

        return run

    for s in (0.3, 0.03, 0.003):
        median("Private Oja: sin does not vanish (Example 4.1), eps = .5, n = 2e4",
               f"sigma = {s:g}", by_private_oja(s, 1.5))  # fmt: skip

    def by_search(n_trials: int) -> Callable[[int], float]:
        def run(seed: int) -> float:
            X, truth = records(Spiked(5), n_trials * 12_000 + 2000, seed)
            found = step_search(
                X, epsilon=1.0, delta=1e-6, run_size=10_000, score_size=2000, clip=3.0,
                batch_size=1250, seed=seed,
            )  # fmt: skip
            return sine(found.fit.components.T, truth)

        return run

    for trials in (1, 9, 25):
        median("Step search: the best of more schedules, each on 1e4 fresh records, G(.1)",
               f"{trials} schedules", by_search(trials))  # fmt: skip
    return rows


# diffprivlib and OpenDP, in an environment of their own

PEER_PACKAGES = (
    "diffprivlib==0.6.6",
    "opendp[scikit-learn]==0.16.0",
    "scikit-learn<1.6",  # diffprivlib cannot be imported with newer ones
)
PEER_CELLS = ((5, 20_000), (10, 20_000), (10, 100_000), (50, 20_000))
PEER_CODE = """
import sys, json, warnings
import numpy as np
warnings.simplefilter("ignore")
which, path, clip, epsilon = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
X = np.load(path)
if which == "diffprivlib":
    from diffprivlib.models import PCA
    pca = PCA(n_components=1, epsilon=epsilon, centered=True, data_norm=clip)
else:
    import opendp.prelude as dp
    dp.enable_features("contrib", "floating-point", "honest-but-curious")
    pca = dp.sklearn.decomposition.PCA(
        epsilon=epsilon, row_norm=clip, n_samples=len(X), n_features=X.shape[1], n_components=1)
pca.fit(X)
print(json.dumps(np.asarray(pca.components_)[0].tolist()))
"""


def peers(limit: float, seeds: int, tick: Callable[[], None]) -> list[dict[str, Any]]:
    """Pure epsilon 1, the best of two norm bounds given free, a time limit for each fit."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "stream-dppca-peers"
    python = cache / "bin" / "python"
    rows: list[dict[str, Any]] = []
    try:
        installed, wanted = cache / "installed.txt", "\n".join(PEER_PACKAGES)
        if not installed.exists() or installed.read_text() != wanted:
            venv.create(cache, with_pip=True, clear=True)
            install = [str(python), "-m", "pip", "install", "-q", *PEER_PACKAGES]
            subprocess.run(install, check=True, capture_output=True, timeout=600)
            installed.write_text(wanted)
    except (subprocess.SubprocessError, OSError) as error:
        detail = getattr(error, "stderr", b"") or b""
        return [{"peer": "all", "result": f"cannot be installed: {error} {detail[-200:]!r}"}]
    with tempfile.TemporaryDirectory() as folder:
        for which in ("diffprivlib", "OpenDP"):
            for d, n in PEER_CELLS:
                best: dict[float, list[float]] = {}
                failures: list[str] = []
                for seed in range(seeds):
                    stream = Spiked(d).stream(seed)
                    X = stream.draw(n)
                    np.save(Path(folder) / "X.npy", X)
                    for q in (0.7, 0.97):
                        clip = float(np.quantile(np.linalg.norm(X, axis=1), q))
                        command = [str(python), "-c", PEER_CODE, which]
                        command += [str(Path(folder) / "X.npy"), str(clip), "1.0"]
                        try:
                            done = subprocess.run(
                                command, capture_output=True, timeout=limit, text=True, check=True
                            )
                            w = np.array(json.loads(done.stdout.splitlines()[-1]))
                            found = sine(w[:, None] / np.linalg.norm(w), stream.components)
                            best.setdefault(q, []).append(found)
                        except subprocess.TimeoutExpired:
                            failures.append(f"not back after {limit:g} s")
                        except subprocess.CalledProcessError as error:
                            failures.append(error.stderr.strip().splitlines()[-1][:120])
                    if len(failures) >= 2 and not best:
                        break  # the first seed failed with both bounds: so will the others
                tick()
                rows.append(
                    {
                        "peer": which,
                        "d": d,
                        "n": n,
                        "median": min((float(np.median(e)) for e in best.values()), default=None),
                        "returned": sum(map(len, best.values())),
                        "failed": len(failures),
                        "why": sorted(set(failures)),
                    }
                )
    return rows


# One loop


def quick_version(cell: Cell) -> Cell:
    return replace(cell, seeds=3, slow_seeds=3)


def is_quick(cell: Cell) -> bool:
    small = cell.problem.d <= 50 and cell.n <= 100_000 and cell.k <= 2
    return small or (cell.group == "target" and cell.problem.d == 200)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small cells, three seeds")
    parser.add_argument("--only", default="*", help="cells whose 'group: name' matches this glob")
    parser.add_argument("--seeds", type=int, help="for all cells")
    parser.add_argument("--ours", action="store_true", help="keep what is stored of the others")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--peers", action="store_true", help="diffprivlib and OpenDP too")
    parser.add_argument("--peer-limit", type=float, default=30.0, help="seconds for one fit")
    parser.add_argument("--docs", action="store_true", help="docs/accuracy.md and figures too")
    parser.add_argument("--render", action="store_true", help="measure nothing, write again")
    options = parser.parse_args(arguments)

    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    stored = out / "accuracy.json"
    part = options.only != "*" or options.render or options.ours
    whole = not part and not options.quick
    results: dict[str, Any] = {"about": {"minutes": 0.0}, "cells": {}}
    if stored.exists() and not whole and not options.quick:
        results = json.loads(stored.read_text())
    if options.render:
        for cell in CELLS:  # what is expected is computed, not measured
            if cell.key in results["cells"]:
                results["cells"][cell.key]["plan"] = planned(cell)
    else:
        measure(options, results, stored)
    order = [c.key for c in (*CELLS, *DRIFTS) if c.key in results["cells"]]
    results["cells"] = {key: results["cells"][key] for key in order}
    stored.write_text(json.dumps(results, indent=1))
    text = render(results)
    (out / "accuracy.md").write_text("# Accuracy\n\n" + text)
    print(text)
    if options.docs:
        write_docs(text + "\n" + draw(results["cells"], DOCS / "figures"), DOCS / "accuracy.md")
        write_docs(readme_table(results), DOCS.parent / "README.md")


def measure(options: argparse.Namespace, results: dict[str, Any], stored: Path) -> None:
    """Run what the options ask for, saving after every cell."""
    cells = [c for c in CELLS if fnmatch.fnmatch(c.key, options.only)]
    drifts = [c for c in DRIFTS if fnmatch.fnmatch(c.key, options.only)]
    if options.quick:
        cells = [quick_version(c) for c in cells if is_quick(c) and not c.group.startswith("curve")]
        drifts = [replace(c, seeds=3) for c in drifts if c.d == 50]
    if options.seeds:
        cells = [replace(c, seeds=options.seeds, slow_seeds=options.seeds) for c in cells]
        drifts = [replace(c, seeds=options.seeds) for c in drifts]
    with_claims = fnmatch.fnmatch("claims", options.only) and not options.ours

    started = time.perf_counter()
    spent = results["about"].get("minutes", 0.0)
    steps = sum(map(work, cells)) + sum(c.seeds * c.d * c.batches * c.batch_size for c in drifts)
    columns = (
        TextColumn("{task.description:44}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as progress:
        task = progress.add_task("", total=steps)
        for cell in cells:
            progress.update(task, description=cell.key)
            share = work(cell) / cell.seeds
            stored_cell = results["cells"].get(cell.key) if options.ours else None
            results["cells"][cell.key] = run_cell(
                cell, lambda share=share: progress.advance(task, share), stored_cell
            )
            save(results, stored, spent, started)
        for drift in drifts:
            progress.update(task, description=drift.key)
            share = drift.d * drift.batches * drift.batch_size
            results["cells"][drift.key] = run_drift(
                drift, lambda share=share: progress.advance(task, share)
            )
            save(results, stored, spent, started)
        nothing: Callable[[], None] = lambda: None  # noqa: E731
        if with_claims:
            progress.update(task, description="the paper's claims")
            results["claims"] = claims(options.quick, nothing)
        if options.peers:
            progress.update(task, description="diffprivlib, OpenDP")
            results["peers"] = peers(options.peer_limit, 1 if options.quick else 3, nothing)
        save(results, stored, spent, started)


def work(cell: Cell) -> float:
    """Numbers touched, for the progress bar."""
    d = cell.problem.d
    return cell.n * d * (3 * cell.seeds * (cell.k + 1) + cell.slow_seeds * (2 + d / 100))


def save(results: dict[str, Any], stored: Path, spent: float, started: float) -> None:
    results["about"] = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": f"{platform.machine()}, Python {platform.python_version()}, "
        f"numpy {np.__version__}",
        # A part that is measured again leaves the command of the whole.
        "command": results["about"].get("command")
        or "python -m benchmarks.accuracy " + " ".join(sys.argv[1:]),
        "minutes": spent + (time.perf_counter() - started) / 60,
    }
    stored.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()

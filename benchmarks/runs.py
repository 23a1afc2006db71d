"""Runs the methods on a cell, and `DPPCA` on a stream that changes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from stream_dppca import DPPCA, plan

from .methods import MANY_FEATURES, METHODS, ONE_BATCH, PAPER_SEEDS, SLOW, TARGETS_ONLY, Data
from .problems import Cell, Drift
from .streams import Correlation, Spiked, sine

__all__ = ["planned", "run_cell", "run_drift"]


def run_cell(
    cell: Cell, tick: Callable[[], None], stored: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Run all methods on all seeds of a cell; with stored results of the same seeds, only ours."""
    started = time.perf_counter()
    kept = stored is not None and stored["seeds"] == cell.seeds
    run = {name: m for name, m in METHODS.items() if name.startswith("DPPCA") or not kept}
    errors: dict[str, dict[str, list[float]]] = {}
    seconds: dict[str, float] = {}
    for seed in range(cell.seeds):
        data = Data(cell, seed)
        for name, method in run.items():
            limit = cell.slow_seeds if name in SLOW else cell.seeds
            if name in TARGETS_ONLY:
                limit = PAPER_SEEDS if cell.group == "target" else 0
            if cell.group in ("many features", "one batch") and name not in MANY_FEATURES:
                limit = 0
            if name in ONE_BATCH:
                limit = cell.seeds if cell.group == "one batch" else 0
            if seed >= limit:
                continue
            before = time.perf_counter()
            for setting, W in method(data).items():
                if not W.shape[1]:
                    loss = 1.0  # nothing was learned
                elif cell.loss == "sine":
                    loss = sine(W, data.truth)
                else:
                    loss = data.correlation.missed(W)
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
    """Error that `plan()` expects at the end of the stream, given the spectrum; k = 1, sines."""
    if cell.k > 1 or cell.loss != "sine":
        return None
    found = Correlation(cell.problem, cell.problem.stream(0).components, cell.k)
    first, second = found.values[:2]
    expected = plan(
        d=cell.problem.d,
        epsilon=cell.epsilon,
        delta=cell.delta,
        batch_size=cell.batch_size,
        trace_ratio=float(cell.problem.d / first),
        gap=float(max(first - second, 1e-9) / first),
    ).noise_error
    records, sines = np.log(np.array(expected)).T
    return float(np.exp(np.interp(math.log(cell.n), records, sines)))


def run_drift(drift: Drift, tick: Callable[[], None]) -> dict[str, Any]:
    """Median error after each batch; for a jump also of an estimator that starts at the jump."""
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
            truth = Correlation(problem, stream.components, 1).vectors
            for begin, pca, where in pcas:
                if t >= begin:
                    pca.learn_array(X)
                    learned = len(pca.components) > 0
                    where[-1].append(sine(pca.components.T, truth) if learned else 1.0)
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
        seed=1000 + seed,
    )


def _first(trace: Iterable[float], level: float) -> int | None:
    """Batches until the error is below the level and stays there."""
    trace = list(trace)
    above = [i for i, error in enumerate(trace, start=1) if error > level]
    return None if above and above[-1] == len(trace) else (above[-1] + 1 if above else 1)

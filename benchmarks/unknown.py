"""Cost of not knowing the mean and the scales, and the rate of false drift alarms.

    python -m benchmarks.unknown                     # about a quarter of an hour on one core
    python -m benchmarks.unknown --seeds 4 --batches 200
    python -m benchmarks.unknown --render --docs     # the tables again, into docs/accuracy.md

The data is Gaussian, G(0.1). Its features have means and scales of their own. `DPPCA` with its
default settings gets the raw data; it is compared with `center="none"` and known `scales` on the
same records, centred and divided by their true standard deviations. Truth is the first eigenvector
of the true correlation matrix.

False alarms are releases that say `drift` although all records come from one distribution.

Results: `unknown.json` and `unknown.md` in `--out`. The noise is seeded, of the same law as in
production.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: one core, fair and repeatable

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from stream_dppca import DPPCA

from .figures import number, table
from .streams import sine

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
START, END = "<!-- unknown: begin -->", "<!-- unknown: end -->"
KNOWN: dict[str, Any] = {"center": "none"}
#: Batches of one stream in which false alarms are counted.
STREAM = 40


@dataclass(frozen=True)
class Unknown:
    """A size, and the largest ratio to the error with both known that is good enough."""

    d: int
    n: int
    batch_size: int
    goal: float


CELLS = (
    Unknown(10, 20_000, 1250, 1.3),
    Unknown(50, 20_000, 2500, 1.3),
    Unknown(50, 20_000, 1250, 1.3),
    Unknown(200, 100_000, 6250, 1.3),
)
#: Features, batch size, settings, and number of batches per run of `--batches`.
ALARMS: tuple[tuple[int, int, dict[str, Any], float], ...] = (
    (50, 2500, {}, 1.0),
    (200, 6250, {}, 0.2),
    (50, 2500, KNOWN, 1.0),
    (200, 6250, KNOWN, 0.5),
    (784, 6250, KNOWN, 0.5),
)


def standardised(
    d: int, n: int, rng: np.random.Generator, v: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Records of G(0.1) around v, divided by their true standard deviations."""
    X = np.sqrt(0.1) * rng.standard_normal((n, d)) + np.sqrt(0.9) * rng.standard_normal((n, 1)) * v
    return np.asarray(X / np.sqrt(0.1 + 0.9 * v**2))


def direction(rng: np.random.Generator, d: int) -> NDArray[np.float64]:
    v = rng.standard_normal(d)
    return np.asarray(v / np.linalg.norm(v))


def model(d: int, batch_size: int, seed: int, **how: Any) -> DPPCA:
    if how:  # records are standardised
        how = {"scales": [1.0] * d, **how}
    return DPPCA(
        features=tuple(range(d)),
        epsilon=1.0,
        delta=1e-6,
        batch_size=batch_size,
        seed=seed,
        **how,
    )


def measure(cell: Unknown, seeds: int, step: Any) -> dict[str, Any]:
    """Sines of both, seed by seed."""
    sines: dict[str, list[float]] = {"known": [], "unknown": []}
    for seed in range(seeds):
        rng = np.random.default_rng([seed, 11])
        v = direction(rng, cell.d)
        Z = standardised(cell.d, cell.n, rng, v)
        loading = np.sqrt(0.9) * v / np.sqrt(0.1 + 0.9 * v**2)
        correlation = np.outer(loading, loading)
        np.fill_diagonal(correlation, 1.0)
        truth = np.linalg.eigh(correlation)[1][:, -1:]
        scale, mean = np.exp(2 * rng.normal(size=cell.d)), 3 * rng.normal(size=cell.d)
        for name, X, how in (("known", Z, KNOWN), ("unknown", (Z + mean) * scale, {})):
            pca = model(cell.d, cell.batch_size, seed, **how)
            pca.learn_array(X)
            sines[name].append(sine(pca.components.T, truth))
        step()
    return {**vars(cell), **sines}


def alarms(d: int, batch_size: int, batches: int, how: dict[str, Any], step: Any) -> dict[str, Any]:
    """Releases that say drift, in streams of `STREAM` batches from one distribution each."""
    found = done = 0
    for seed in range(max(1, round(batches / STREAM))):
        rng = np.random.default_rng([seed, 12])
        v = direction(rng, d)
        pca = model(d, batch_size, seed, **how)
        for _ in range(STREAM):
            pca.learn_array(standardised(d, batch_size, rng, v))
            last = pca.last_release
            found, done = found + (last is not None and last.drift), done + 1
        step()
    return {"d": d, "batch_size": batch_size, "known": bool(how), "alarms": found, "batches": done}


def render(results: dict[str, Any]) -> str:
    rows = []
    for cell in results["cells"]:
        known, unknown = (float(np.median(cell[name])) for name in ("known", "unknown"))
        met = "yes" if unknown / known <= cell["goal"] else "**no**"
        size = [str(cell[name]) for name in ("d", "n", "batch_size")]
        rows.append(
            [
                *size,
                str(len(cell["known"])),
                number(known),
                number(unknown),
                f"**{unknown / known:.2f}**",
                f"{cell['goal']:g}",
                met,
            ]
        )
    header = ["d", "n", "B", "seeds", "centre and scales known", "nothing known", "ratio"]
    header += ["at most", "met"]
    alarm_rows = [
        [
            "centre and scales known" if a["known"] else "nothing known",
            str(a["d"]),
            str(a["batch_size"]),
            str(a["batches"]),
            str(a["alarms"]),
        ]
        for a in results["alarms"]
    ]
    return (
        f"Measured {results['date']}: `python -m benchmarks.unknown`. G(0.1) with means and scales "
        "of its own, epsilon 1, delta 1e-6, medians.\n\n"
        + table(header, rows)
        + f'\n\nFalse alarms of `memory="auto"` in streams of {STREAM} batches that never change.'
        + "\n\n"
        + table(["G(0.1)", "d", "B", "batches", "alarms"], alarm_rows)
        + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=40, help="fewer with 200 features")
    parser.add_argument("--batches", type=int, default=4000, help="for false alarms")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--docs", action="store_true", help="write docs/accuracy.md as well")
    parser.add_argument("--render", action="store_true", help="tables again, from the JSON")
    options = parser.parse_args()
    file = options.out / "unknown.json"
    if options.render:
        results = json.loads(file.read_text())
    else:
        results = run(options.seeds, options.batches)
        file.write_text(json.dumps(results, indent=1))
    text = render(results)
    (options.out / "unknown.md").write_text(text)
    print(text)
    if options.docs:
        page = DOCS / "accuracy.md"
        before, rest = page.read_text().split(START)
        page.write_text(f"{before}{START}\n\n{text}\n{END}{rest.split(END)[1]}")


def run(seeds: int, batches: int) -> dict[str, Any]:
    columns = (TextColumn("{task.description:24}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("", total=None)

        def step() -> None:
            progress.advance(task)

        cells, counted = [], []
        for cell in CELLS:
            progress.update(task, description=f"d = {cell.d}, B = {cell.batch_size}")
            fewer = max(1, seeds // 4) if cell.d == 200 else seeds
            cells.append(measure(cell, fewer, step))
        for d, batch_size, how, part in ALARMS:
            progress.update(task, description=f"alarms, d = {d}")
            counted.append(alarms(d, batch_size, round(part * batches), how, step))
    return {"date": time.strftime("%Y-%m-%d", time.gmtime()), "cells": cells, "alarms": counted}


if __name__ == "__main__":
    main()

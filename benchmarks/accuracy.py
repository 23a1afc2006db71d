"""Accuracy of `DPPCA` and of every other private PCA, on problems with a known truth.

    python -m benchmarks.accuracy                 # everything, under an hour on one core
    python -m benchmarks.accuracy --quick         # two minutes, three seeds, nothing to quote
    python -m benchmarks.accuracy --only 'target*' --seeds 40
    python -m benchmarks.accuracy --ours          # `DPPCA` again; what is stored of others is kept
    python -m benchmarks.accuracy --render        # tables and figures again, from the JSON

`problems.py` has the problems and `methods.py` the methods; `runs.py` runs a cell, `claims.py`
measures the paper's claims, and `figures.py` makes the tables. Other libraries and published
experiments are in `comparisons.py`.
`DPPCA` gets epsilon, delta, features and batch size, and nothing else. All others get the settings
that they need **free**: each is run with several settings on the same data, and the setting with
the best median counts. The noise is seeded, of the same law as in production.

Results: `accuracy.json` and `accuracy.md` in `--out`; with `--docs` also `docs/accuracy.md`,
between its markers, and `docs/figures`.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: one core, fair and repeatable

import argparse
import fnmatch
import json
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from .claims import claims
from .figures import draw, render, write_docs
from .problems import CELLS, DRIFTS, Cell
from .runs import planned, run_cell, run_drift

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"


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


def measure(options: argparse.Namespace, results: dict[str, Any], stored: Path) -> None:
    """Run the cells that the options select, saving after every cell."""
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
            new = {"methods": {}, "seeds": cell.seeds}  # of others, nothing is stored
            stored_cell = results["cells"].get(cell.key, new) if options.ours else None
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

"""`DPPCA`, given nothing, beside libraries and published experiments, given what they need.

    pip install -e '.[bench]'
    apt-get install dataset-fashion-mnist                  # or --fashion path
    python -m benchmarks.comparisons --data folder --docs  # streams.npz in it; writes the page
    python -m benchmarks.comparisons --only 'spiked*' --trials 3   # a part of it, fewer trials
    python -m benchmarks.comparisons --data folder --ours  # `DPPCA` again; the others are kept
    python -m benchmarks.comparisons --render              # the tables again, from the JSON

It makes an environment with diffprivlib and OpenDP in the user's cache (`benchmarks.peers`),
because diffprivlib needs an older scikit-learn. Cells that the JSON has are not measured again,
unless `--again`: a run that was stopped resumes. Data that is missing is left out with a note.

| cells | setting |
|---|---|
| `library` | diffprivlib and OpenDP, k = 1, epsilon 1, processor seconds per fit limited |
| `energy` | capePCA: relative captured energy, delta .01 |
| `spiked` | k-DP-PCA's Figure 1: k = 2, d = 200, epsilon 1, delta .01 |
| `power law` | Grammenos et al.: d = 20, 5000 records, delta .05, first component |

`scales=None` says that features are in one unit, so that the PCA of the covariance matrix is asked
for, as in `energy` (but for adult), `spiked` and `power law`; it says nothing about the data.
Results: `comparisons.json` in `--out`, and with `--docs` the tables of docs/comparisons.md. The
noise of `DPPCA` and of the baselines is seeded, of the same law as in production; the libraries
draw their own.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: one core, fair and repeatable

import argparse
import fnmatch
import json
import platform
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from stream_dppca import DPPCA, BatchSizeError, LooseBudgetWarning

from . import peers, published
from .baselines import analyze_gauss, noisy_power_method
from .figures import table, with_zeros, write_docs
from .methods import top
from .real import analyze_gauss as best_analyze_gauss
from .real import number
from .real_data import BATCHES, Array, Missing, Paths, given, sine, truth
from .streams import Spiked

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "comparisons.md"
Values = dict[str, Any]  #: for each column: a number per trial, or a sentence
Measure = Callable[[Array], float]  #: of components, d x k
Columns = dict[str, Callable[[], Array | None]]  #: name, and how its components are found

LIBRARY_SYNTHETIC = ((5, 20_000), (10, 20_000), (20, 20_000), (50, 20_000))
LIBRARY_STREAMS = ("shuttle", "cover", "cmapss1")
#: Quantiles of the norms from which the libraries get the better bound.
BOUNDS = (0.7, 0.97)
LIBRARY_TRIALS = 3
#: Data, components and records, in place of those of capePCA.
ENERGY = (
    ("fashion", 50, 10_000),
    ("cover", 3, 5_000),
    ("adult_onehot", 10, 40_000),
    ("synthetic", 50, 10_000),
)
CLIPS = (0.7, 0.9, 1.0)  #: quantiles of the norms
ROUNDS = (2, 3, 5)
SPIKED = tuple((sigma, n) for sigma in (0.025, 0.001) for n in (5_000, 20_000, 50_000))
ALPHAS, POWER_EPSILONS = (0.01, 0.1, 0.5, 1.0), (0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class Context:
    """Places of the data, and how much is to be done."""

    streams: Path | None
    paths: Paths
    limit: int
    trials: int | None
    others: bool = True  #: run the other methods, too

    def stream(self, name: str) -> Array:
        if self.streams is None or not self.streams.exists():
            raise Missing(f"no file {self.streams or 'streams.npz'}")
        return next(data for data in given(self.streams) if data.name == name).load(self.paths)

    def many(self, usual: int) -> range:
        return range(usual if self.trials is None else min(usual, self.trials))


@dataclass(frozen=True)
class Cell:
    """One row of a table."""

    key: str
    run: Callable[[Context], Values]


def ours(
    X: Array, k: int, epsilon: float, delta: float, seed: int, batch: int | None = None, **told: Any
) -> Array | None:
    """Components of `DPPCA`, d x k: all records as its only batch, or a stream of batches.

    None if it refuses a batch of this size beforehand; d x 0 if it learned nothing.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LooseBudgetWarning)  # the deltas are those of the papers
        try:
            pca = DPPCA(
                features=tuple(range(X.shape[1])),
                epsilon=epsilon,
                delta=delta,
                batch_size=batch or len(X),
                batches=None if batch else 1,
                n_components=k,
                seed=seed,
                **told,
            )
        except BatchSizeError:
            return None
    pca.learn_array(X)
    return np.asarray(pca.components.T)


def gauss(X: Array, **settings: Any) -> Array:
    """Components of `benchmarks.baselines.analyze_gauss`, d x k."""
    return np.asarray(analyze_gauss(X, **settings).components.T)


def keep(result: Values, columns: Columns, measure: Measure, others: bool) -> None:
    """Add what is measured of the components that are found; None, if nothing was learned."""
    for column, find in columns.items():
        if not others and not column.startswith("DPPCA"):
            continue
        found = find()
        if found is None:
            result[column] = "refused"
        else:
            result.setdefault(column, []).append(measure(found) if found.size else None)


def sine_to(target: Array) -> Measure:
    return lambda found: sine(found, target)


def cosine_to(target: Array) -> Measure:
    return lambda found: abs(float(np.sum(found * target)))


def captured(covariance: Array, most: float) -> Measure:
    return lambda found: float(np.sum(found * (covariance @ found))) / most


def pairs(X: Array, seed: int) -> Array:
    """Differences of records, each record in one of them, whatever their order."""
    order = np.random.default_rng([seed, 26]).permutation(len(X) // 2 * 2)
    return np.asarray(X[order[::2]] - X[order[1::2]])


def best(by_setting: dict[Any, list[float]], sign: int = 1) -> list[float]:
    """The setting with the least median, or with sign -1 the largest.

    That is a favour: choosing it would cost privacy.
    """
    return min(by_setting.values(), key=lambda values: sign * float(np.median(values)))


# Cells


def library(context: Context, load: Callable[[Context, int], Array], batch: int) -> Values:
    """Sines of both libraries, of Analyze-Gauss given everything, and of `DPPCA` given nothing."""
    result: Values = {}
    for seed in context.many(8):
        X = load(context, seed)
        found = truth(X)
        budget: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "seed": seed}
        columns: Columns = {
            "unit norm": partial(gauss, found.Z, unit_norm=True, **budget),
            "pairs": partial(gauss, pairs(found.Z, seed), unit_norm=True, **budget),
            "DPPCA, one batch": partial(ours, X, 1, **budget),
            "DPPCA": partial(ours, X, 1, batch=batch, **budget),
        }
        keep(result, columns, sine_to(found.vectors[:, :1]), context.others)
    shape: Values = {"d": X.shape[1], "n": len(X), "batch": batch}
    return shape | result | (_libraries(context, load(context, 0)) if context.others else {})


def _libraries(context: Context, X: Array) -> Values:
    result: Values = {}
    python = peers.install()
    found = truth(X)
    result["Analyze-Gauss"] = [min(best_analyze_gauss(found, 1))]
    norms = np.linalg.norm(found.Z, axis=1)
    for which in peers.LIBRARIES:
        sines: dict[Any, list[float]] = {}
        reasons: list[str] = []
        for _ in context.many(LIBRARY_TRIALS):
            for q in BOUNDS:
                try:
                    w = peers.fit(
                        python,
                        which,
                        found.Z,
                        clip=float(np.quantile(norms, q)),
                        epsilon=1.0,
                        limit=context.limit,
                    )
                    sines.setdefault(q, []).append(sine(w, found.vectors[:, :1]))
                except peers.NoAnswer as answer:
                    reasons.append(str(answer))
                    if not sines:
                        break
            if not sines:
                break  # a fit without an answer takes the whole limit: one is enough
        result[which] = best(sines) if sines else reasons[0]
        result[f"{which}, without answer"] = len(reasons)
    return result


def library_cells() -> Iterator[Cell]:
    for d, n in LIBRARY_SYNTHETIC:
        drawn = partial(_drawn, d=d, n=n)
        yield Cell(f"library: G(.1), d = {d}", partial(library, load=drawn, batch=n // 10))
    for name in LIBRARY_STREAMS:
        read = partial(_read, name=name)
        yield Cell(f"library: {name}", partial(library, load=read, batch=BATCHES[name]))


def _drawn(_: Context, seed: int, *, d: int, n: int) -> Array:
    return Spiked(d).stream(seed).draw(n)


def _read(context: Context, _: int, *, name: str) -> Array:
    return context.stream(name)


def energy(context: Context, name: str, k: int, n: int, epsilon: float) -> Values:
    """Energy captured by k components of n records, over that of the PCA of the same records."""
    delta = 0.01
    told: dict[str, Any] = {"scales": None}
    if name == "adult_onehot":
        told = {}  # numbers of people beside years and dollars: each feature has its own unit
    result: Values = {}
    by_clip: dict[Any, list[float]] = {}
    for seed in context.many(10):
        if name == "synthetic" or not seed:
            whole = _energy_data(context, name, seed)
            unit = np.ones(whole.shape[1]) if told else whole.std(axis=0)
            A = np.cov((whole / unit).T)
        X = whole[np.random.default_rng([seed, 27]).choice(len(whole), n, replace=False)]
        Y = X / unit
        most = captured(A, 1.0)(top(np.cov(Y.T), k))
        centred = Y - Y.mean(axis=0)
        norms = np.linalg.norm(centred, axis=1)
        budget: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "seed": seed}
        for q in CLIPS if context.others else ():
            clip = float(np.quantile(norms, q))
            U = gauss(centred, clip=clip, n_components=k, **budget)
            by_clip.setdefault(q, []).append(captured(A, most)(U))
        columns: Columns = {
            "as published": partial(published.cape_analyze_gauss, Y, k, **budget),
            "DPPCA, one batch": partial(ours, X, k, **budget, **told),
            "DPPCA": partial(ours, X, k, batch=n // 5, **budget, **told),
        }
        keep(result, columns, captured(A, most), context.others)
    if by_clip:
        result["Analyze-Gauss"] = best(by_clip, sign=-1)
    return {"data": name, "d": whole.shape[1], "k": k, "n": n, "epsilon": epsilon} | result


def _energy_data(context: Context, name: str, seed: int) -> Array:
    if name == "synthetic":
        return published.cape_synthetic(seed)
    if name == "fashion":
        return published.fashion_pixels(context.paths)
    X = context.stream(name)
    return X[:, X.std(axis=0) > 0]


def energy_cells() -> Iterator[Cell]:
    for name, k, n in ENERGY:
        for e in published.EPSILONS:
            run_it = partial(energy, name=name, k=k, n=n, epsilon=e)
            yield Cell(f"energy: {name}, epsilon {e:g}", run_it)
    for n in published.CAPE_BY_N:
        run_it = partial(energy, name="fashion", k=50, n=n, epsilon=1.0)
        yield Cell(f"energy: fashion, n = {n}", run_it)


def spiked(context: Context, sigma: float, n: int) -> Values:
    """Sines of two components."""
    budget: dict[str, Any] = {"epsilon": 1.0, "delta": 0.01}
    result: Values = {}
    by_clip: dict[Any, list[float]] = {}
    power: dict[Any, list[float]] = {}
    for seed in context.many(50):
        X, V = published.spiked(seed, n, sigma)
        common = budget | {"n_components": 2, "seed": seed}
        columns: Columns = {
            "not private": partial(top, np.cov(X.T), 2),
            "unit norm": partial(gauss, X, unit_norm=True, **common),
            "pairs": partial(gauss, pairs(X, seed), unit_norm=True, **common),
            "DPPCA, one batch": partial(ours, X, 2, seed=seed, scales=None, **budget),
            "DPPCA": partial(ours, X, 2, seed=seed, batch=n // 10, scales=None, **budget),
        }
        keep(result, columns, sine_to(V), context.others)
        norms = np.linalg.norm(X, axis=1)
        for q in CLIPS if context.others else ():
            clip = float(np.quantile(norms, q))
            by_clip.setdefault(q, []).append(sine(gauss(X, clip=clip, **common), V))
            for L in ROUNDS:
                fit = noisy_power_method(X, clip=clip, n_iterations=L, **common)
                power.setdefault((q, L), []).append(sine(fit.components.T, V))
    if by_clip:
        result |= {"Analyze-Gauss": best(by_clip), "power method": best(power)}
    return {"sigma": sigma, "n": n} | result


def power_law(context: Context, alpha: float, epsilon: float) -> Values:
    """Cosines of the first component to that of the records."""
    result: Values = {}
    for seed in context.many(50):
        X = published.power_law(seed, alpha)
        v = top(X.T @ X, 1)
        budget: dict[str, Any] = {"epsilon": epsilon, "delta": 0.05, "seed": seed}
        columns: Columns = {
            "MOD-SuLQ": partial(published.mod_sulq, X, **budget),
            "Analyze-Gauss": partial(gauss, X, clip=1.0, **budget),
            "DPPCA, one batch": partial(ours, X, 1, scales=None, **budget),
            "DPPCA": partial(ours, X, 1, batch=500, scales=None, **budget),
        }
        keep(result, columns, cosine_to(v), context.others)
    return {"alpha": alpha, "epsilon": epsilon} | result


def cells() -> list[Cell]:
    return [
        *library_cells(),
        *energy_cells(),
        *(Cell(f"spiked: sigma {s:g}, n = {n}", partial(spiked, sigma=s, n=n)) for s, n in SPIKED),
        *(
            Cell(f"power law: alpha {a:g}, epsilon {e:g}", partial(power_law, alpha=a, epsilon=e))
            for a in ALPHAS
            for e in POWER_EPSILONS
        ),
    ]


# Tables


def shown(found: Values, column: str, *, worst: float = 1.0) -> str:
    """Median of sines, whose worst value is 1, or mean of shares, whose worst is 0."""
    values = found.get(column, "-")
    if isinstance(values, str):
        return values
    if all(value is None for value in values):
        return "no release"
    kind = np.median if worst else np.mean
    return number(float(kind([worst if value is None else value for value in values])))


def trials(found: Values) -> str:
    return str(len(found["DPPCA, one batch"]))


def tables(results: Values) -> dict[str, str]:
    """Markdown of each part of the page."""
    measured = results["cells"]
    about = results["about"]
    said = f"Measured {about['date']} on {about['machine']}, {about['minutes']:.0f} minutes in all."

    def of(kind: str) -> list[tuple[str, Values]]:
        return [(key, found) for key, found in measured.items() if key.startswith(kind + ":")]

    private = ("Analyze-Gauss", "unit norm", "pairs", "DPPCA, one batch", "DPPCA")
    library_columns = (*peers.LIBRARIES, *private)
    library_rows = [
        [
            key.removeprefix("library: "),
            str(found["d"]),
            str(found["n"]),
            str(found["batch"]),
            *(shown(found, column) for column in library_columns),
            trials(found),
        ]
        for key, found in of("library")
    ]
    return {
        "libraries": f"{said}\n\n"
        + table(["data", "d", "n", "batch of DPPCA", *library_columns, "trials"], library_rows),
        "energy": _energy_table(of("energy")),
        "spiked": _spiked_table(of("spiked")),
        "power-law": _power_table(of("power law")),
    }


PLACES = {"fashion": "MNIST", "cover": "covtype", "synthetic": "synthetic"}


def _energy_table(rows: list[tuple[str, Values]]) -> str:
    lines = []
    for key, found in rows:
        there, by = PLACES.get(found["data"]), "-"
        if there is not None:
            (_, _, n), values = published.CAPE[there]
            known = dict(zip(published.EPSILONS, values, strict=True))
            by = f"{known[found['epsilon']]:.2f}" if found["n"] == n else by
            if ", n = " in key:
                by = f"{published.CAPE_BY_N[found['n']]:.2f}"
            by += f" ({there})" if there != found["data"] else ""
        columns = ("as published", "Analyze-Gauss", "DPPCA, one batch", "DPPCA")
        lines.append(
            [
                found["data"],
                str(found["d"]),
                str(found["k"]),
                str(found["n"]),
                f"{found['epsilon']:g}",
                by,
                *(shown(found, column, worst=0.0) for column in columns),
                trials(found),
            ]
        )
    header = ["data", "d", "K", "N", "epsilon", "capePCA's figure", "its method here"]
    header += ["Analyze-Gauss, best clip", "DPPCA, one batch", "DPPCA, five batches", "trials"]
    return table(header, lines)


def _spiked_table(rows: list[tuple[str, Values]]) -> str:
    others = ("not private", "Analyze-Gauss", "power method", "unit norm", "pairs")
    columns = (*others, "DPPCA, one batch", "DPPCA")
    lines = [
        [f"{f['sigma']:g}", str(f["n"]), *(shown(f, column) for column in columns), trials(f)]
        for _, f in rows
    ]
    return table(["sigma", "n", *columns[:-1], "DPPCA, ten batches", "trials"], lines)


def _power_table(rows: list[tuple[str, Values]]) -> str:
    columns = ("MOD-SuLQ", "Analyze-Gauss", "DPPCA, one batch", "DPPCA")
    lines = [
        [
            f"{f['alpha']:g}",
            f"{f['epsilon']:g}",
            f"{published.FPCA[f['alpha']][f['epsilon']]:.2f}",
            f"{published.MOD_SULQ[f['alpha']][f['epsilon']]:.2f}",
            *(shown(f, column, worst=0.0) for column in columns),
            trials(f),
        ]
        for _, f in rows
    ]
    header = ["alpha", "epsilon", "F-PCA, their figure", "MOD-SuLQ, their figure"]
    return table([*header, "MOD-SuLQ here", *columns[1:-1], "DPPCA, ten batches", "trials"], lines)


# Command


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="a folder with streams.npz, arrays by name")
    parser.add_argument("--fashion", type=Path, default=Paths.fashion)
    parser.add_argument("--only", default="*", help="cells, with wildcards")
    parser.add_argument("--trials", type=int, help="at most so many of each")
    parser.add_argument("--limit", type=int, default=30, help="processor seconds of a library")
    parser.add_argument("--again", action="store_true", help="measure what the JSON has, too")
    parser.add_argument("--ours", action="store_true", help="only `DPPCA`, of all that it has")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--docs", action="store_true", help="write docs/comparisons.md as well")
    parser.add_argument("--render", action="store_true", help="tables again, from the JSON")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "comparisons.json"
    results: Values = {"cells": {}, "about": {"minutes": 0.0}}
    if file.exists():
        results = json.loads(file.read_text())
    if not options.render:
        run(options, results, file)
    for part, found in tables(results).items() if results["cells"] else ():
        text = with_zeros(found)
        print(f"\n{part}\n\n{text}")
        if options.docs:
            write_docs(text, PAGE, f"comparisons-{part}")


def run(options: argparse.Namespace, results: Values, file: Path) -> None:
    """Measure the cells that are wanted, and store each as soon as it is done."""
    streams = options.data / "streams.npz" if options.data else None
    paths = Paths(fashion=options.fashion)
    context = Context(streams, paths, options.limit, options.trials, not options.ours)
    every = cells()
    wanted = [
        cell
        for cell in every
        if fnmatch.fnmatch(cell.key, options.only)
        and (options.again or (cell.key in results["cells"]) == options.ours)
    ]
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("", total=len(wanted))
        for cell in wanted:
            progress.update(task, description=cell.key)
            started = time.monotonic()
            try:
                found = cell.run(context)
            except (Missing, subprocess.SubprocessError) as missing:
                progress.print(f"{cell.key}: left out, {missing}")
                continue
            minutes = (time.monotonic() - started) / 60
            before = results["cells"].get(cell.key, {"seconds": 0.0}) if options.ours else {}
            spent = round(60 * minutes, 1) + before.get("seconds", 0.0)
            known = results["cells"] | {cell.key: before | found | {"seconds": spent}}
            results["cells"] = {c.key: known[c.key] for c in every if c.key in known}
            results["about"] = {
                "date": datetime.now(tz=UTC).date().isoformat(),
                "machine": f"{platform.machine()}, Python {platform.python_version()}, "
                f"numpy {np.__version__}",
                "minutes": results["about"]["minutes"] + minutes,
            }
            file.write_text(json.dumps(results, indent=1))
            progress.advance(task)


if __name__ == "__main__":
    main()

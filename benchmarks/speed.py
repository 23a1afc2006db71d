"""Speed and memory, as ratios against a peer measured in the same run, on one core.

    python -m benchmarks.speed [--quick] [--only PART ...] [--docs] [--out DIR]

Writes speed.json and speed.md; with --docs also the table in docs/speed.md and its figure. With
--only, the rows of all other parts stay as they are in speed.json. Every figure is the best of
several runs, ours and the peer's in turn, in processor time, because other work on the machine can
only make a run slower. A target that is missed comes with its limit, which is measured, too.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is loaded
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from river import preprocessing
from sklearn.decomposition import IncrementalPCA
from sklearn.preprocessing import StandardScaler

from benchmarks.figures import log_axes, save, table, write_docs
from stream_dppca import DPPCA
from stream_dppca.noise import Noise

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parents[1] / "docs"
BATCH = 10_000
BUDGET = {"epsilon": 1.0, "delta": 1e-6}
LINEAR = "linear: slope 1 in log-log"


@dataclass
class Row:
    """One line of the table. `value` is what `target` is about."""

    what: str
    against: str
    value: float
    target: float | None  # None: in the report only
    at_most: bool = False  # whether the target is an upper bound
    unit: str = "x"
    detail: dict[str, float] = field(default_factory=dict)
    limit: str = ""  # reason why the target is missed, if it is
    part: str = ""  # of the benchmark

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.value <= self.target if self.at_most else self.value >= self.target


def best(
    *runs: Callable[[], object], repeats: int, clock: Callable[[], float] = time.thread_time
) -> list[float]:
    """Seconds of the best run of each, taken in turn; processor time by default."""
    seconds = [float("inf")] * len(runs)
    for _ in range(repeats):
        for i, run in enumerate(runs):
            start = clock()
            run()
            seconds[i] = min(seconds[i], clock() - start)
    return seconds


def model(d: int, batch_size: int = BATCH, **changes: object) -> DPPCA:
    return DPPCA(
        features=tuple(f"f{i}" for i in range(d)),
        batch_size=batch_size,
        **BUDGET | changes,
    )


class Silent(Noise):
    """A source without noise, to measure the cost of everything else."""

    private = False

    def _rounded_gaussian(self, values: np.ndarray, sd: float) -> np.ndarray:
        return np.rint(values)


def without_noise(pca: DPPCA) -> DPPCA:
    pca._noise = Silent()
    return pca


def data(n: int, d: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((n, d))


# The rows


def draws(d: int) -> Callable[[], object]:
    """The noise of the second moments of one batch alone."""
    noise, zeros = Noise(), np.zeros((d + 1) * (d + 2) // 2)
    return lambda: noise.gaussian(zeros, sensitivity=1.0, mu=1.0)


def noise_against_opendp(repeats: int) -> Iterator[Row]:
    for size, target in ((100, 50), (1000, 180), (10_000, 180)):
        zeros = np.zeros(size)
        # One after the other, not in turn: a millisecond of OpenDP leaves nothing in the cache.
        (ours,), (theirs,) = (
            best(draw, repeats=max(repeats, 20_000 // size))
            for draw in (
                lambda z=zeros: Noise().gaussian(z, sensitivity=1.0, mu=1.0),
                opendp_draws(size),
            )
        )
        yield Row(
            f"noise, {size} numbers",
            "OpenDP",
            theirs / ours,
            target,
            detail={"ns per number": ours / size * 1e9, "peer ns": theirs / size * 1e9},
            limit=f"calls of numpy: one number takes {_one_number(repeats) * 1e6:.3g} us.",
        )


def opendp_draws(size: int) -> Callable[[], object]:
    """The same numbers from OpenDP's discrete Gaussian."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64"), size=size), dp.l2_distance(T="f64")
    draw, zeros = dp.m.make_gaussian(*space, scale=2.0**28), np.zeros(size)
    return lambda: np.array(draw(np.rint(zeros).astype(np.int64).tolist()), dtype=np.float64)


def _one_number(repeats: int) -> float:
    noise, zero = Noise(), np.zeros(1)
    return best(lambda: noise.gaussian(zero, sensitivity=1.0, mu=1.0), repeats=repeats)[0]


def arrays_against_naive(repeats: int) -> Iterator[Row]:
    """The same sums in plain numpy, on the whole array, without privacy."""
    for d in (64, 128, 300, 1000):
        X, center, scale = data(BATCH, d), np.zeros(d), np.ones(d)

        def naive(X: np.ndarray = X, c: np.ndarray = center, s: np.ndarray = scale) -> np.ndarray:
            Z = np.clip((X - c) / s, -5, 5)
            square = np.einsum("ij,ij->i", Z, Z)
            Z *= np.minimum(1, np.sqrt(2 * X.shape[1] / square))[:, None]
            return Z.T @ Z

        ours, known = warm(model(d), X), warm(model(d, center="none", scales=[1.0] * d), X)
        whole, told, theirs, product, noise = best(
            lambda X=X, m=ours: m.learn_array(X),
            lambda X=X, m=known: m.learn_array(X),
            naive,
            lambda X=X: X.T @ X,
            draws(d),
            repeats=repeats,
        )
        yield Row(
            f"`learn_array`, B = {BATCH}, d = {d}",
            "clip((X - c)/s), norms, scale, Z.T @ Z in numpy",
            whole / theirs,
            1.1,
            True,
            detail={
                "ms": whole * 1e3,
                "peer ms": theirs * 1e3,
                "X.T @ X ms": product * 1e3,
                "noise ms": noise * 1e3,
                "scales known ms": told * 1e3,
            },
            limit=f"the product takes {product * 1e3:.3g} ms, noise {noise * 1e3:.2g} ms.",
        )


def arrays_against_incremental_pca(repeats: int) -> Iterator[Row]:
    for d, target in ((10, 3), (100, 12), (1000, 6)):
        X = data(BATCH, d)
        ours, bare = warm(model(d), X), warm(without_noise(model(d)), X)
        scaler, peer = StandardScaler(), IncrementalPCA(n_components=1)
        whole, rest, noise = best(
            lambda X=X, m=ours: m.learn_array(X),
            lambda X=X, m=bare: m.learn_array(X),
            draws(d),
            repeats=2 * repeats,
        )
        (theirs,) = best(
            lambda X=X, s=scaler, p=peer: p.partial_fit(s.partial_fit(X).transform(X)),
            repeats=max(repeats // 5, 2),
        )
        yield Row(
            f"`learn_array`, B = {BATCH}, d = {d}",
            "scikit-learn `StandardScaler` and `IncrementalPCA`, `partial_fit`",
            theirs / whole,
            target,
            detail={
                "ms": whole * 1e3,
                "peer ms": theirs * 1e3,
                "noise ms": noise * 1e3,
                "without noise": theirs / rest,
            },
            limit=f"see above; without noise it is {theirs / rest:.3g} x.",
        )


def second_moments(repeats: int) -> Iterator[Row]:
    """A batch of second moments of a thousand features, in a process of its own."""
    code = """
import re, sys, time, numpy as np
from stream_dppca import DPPCA
B, d, repeats = map(int, sys.argv[1:])
def peak(): return int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) * 1024
rng = np.random.default_rng(0)
import scipy.special, scipy.sparse.linalg
X = rng.standard_normal((B, d))
X /= np.sqrt(np.arange(1.0, d + 1))
m = DPPCA(features=tuple(range(d)), epsilon=1.0, delta=1e-6, batch_size=B)
for _ in range(m.first_batches): m.learn_array(X)
start, seconds = peak(), []
for _ in range(2 + repeats):
    began = time.thread_time()
    m.learn_array(X)
    seconds.append(time.thread_time() - began)
print(min(seconds[2:]), peak() - start)
"""
    d = 1000
    out = subprocess.run(
        [sys.executable, "-c", code, str(BATCH), str(d), str(repeats)],
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, used = (float(x) for x in out.stdout.split())
    X = data(BATCH, d)
    (product,) = best(lambda: X.T @ X, repeats=max(repeats // 3, 2))
    what = f"a batch of second moments, B = {BATCH}, d = {d}"
    limit = f"the product X^T X alone takes {product:.2g} s here."
    yield Row(what, "half a second", seconds, 0.5, True, "s", {"X.T @ X, s": product}, limit)
    yield Row(what, "100 MB above the batch", used / 1e6, 100.0, True, "MB", limit="")


def warm(pca: DPPCA, X: np.ndarray) -> DPPCA:
    """A model after its first step, and one more."""
    while pca.n_batches < 2:
        pca.learn_array(X)
    return pca


def dicts(repeats: int) -> Iterator[Row]:
    for d, target in ((10, 3), (100, 6)):
        names = tuple(f"f{i}" for i in range(d))
        records = [dict(zip(names, row, strict=True)) for row in data(BATCH, d).tolist()]
        rows, pca, scaler = np.empty((BATCH, d)), model(d), preprocessing.StandardScaler()

        def bare(records: list = records, rows: np.ndarray = rows, names: tuple = names) -> None:
            for i, x in enumerate(records):
                rows[i] = [x[name] for name in names]

        def ours(records: list = records, pca: DPPCA = pca) -> None:
            for x in records:
                pca.learn_one(x)

        def peer(records: list = records, scaler: object = scaler) -> None:
            for x in records:
                scaler.learn_one(x)

        loop, whole, theirs = best(bare, ours, peer, repeats=max(repeats // 2, 3))
        us = {"us": whole / BATCH * 1e6}
        yield Row(
            f"`learn_one`, d = {d}",
            "dict to row by key, nothing else",
            whole / loop,
            1.3,
            True,
            detail=us | {"peer us": loop / BATCH * 1e6},
        )
        yield Row(
            f"`learn_one`, d = {d}",
            "river `StandardScaler.learn_one`",
            theirs / whole,
            target,
            detail=us | {"peer us": theirs / BATCH * 1e6},
        )


def frames(repeats: int) -> Iterator[Row]:
    for d in (10, 100):
        frame = pd.DataFrame(data(BATCH, d), columns=[f"f{i}" for i in range(d)])
        pieces = [frame.iloc[i : i + 1000] for i in range(0, BATCH, 1000)]
        pca, scaler = model(d), preprocessing.StandardScaler()
        whole, theirs = best(
            lambda p=pieces, m=pca: [m.learn_many(x) for x in p],
            lambda p=pieces, s=scaler: [s.learn_many(x) for x in p],
            repeats=repeats,
        )
        yield Row(
            f"`learn_many`, frames of 1000, d = {d}",
            "river `StandardScaler.learn_many`",
            theirs / whole,
            1.0,
            detail={"ms": whole * 100, "peer ms": theirs * 100},
        )


def memory(batches: int) -> Iterator[Row]:
    """Measure memory in a process of its own, so that nothing else is measured."""
    code = """
import re, sys, numpy as np
import scipy.special
from stream_dppca import DPPCA
B, d, batches = map(int, sys.argv[1:])
def peak(): return int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) * 1024
X = np.random.default_rng(0).standard_normal((B // 10, d)).astype(np.float32)
start = peak()
m = DPPCA(features=tuple(range(d)), epsilon=1.0, delta=1e-6, batch_size=B)
for _ in range(20): m.learn_array(X)
early = peak()
small = DPPCA(features=tuple(range(8)), epsilon=8.0, delta=1e-3, batch_size=100, seed=1)
Y = np.random.default_rng(0).standard_normal((100, 8))
for _ in range(batches // 10): small.learn_array(Y)
middle = peak()
for _ in range(batches): small.learn_array(Y)
print(early - start, peak() - middle)
"""
    B, d = 20_000, 500
    out = subprocess.run(
        [sys.executable, "-c", code, str(B), str(d), str(batches)],
        capture_output=True,
        text=True,
        check=True,
    )
    used, growth = (float(x) for x in out.stdout.split())
    allowed = 2.2 * B * d * 8 + 60e6
    yield Row(
        f"memory, B = {B}, d = {d}",
        "2.2 x (B x d x 8 bytes) + 60 MB",
        used / allowed,
        1.0,
        True,
        detail={"MB": used / 1e6, "allowed MB": allowed / 1e6},
    )
    yield Row(
        f"growth of memory over {batches} batches", "nothing", growth / 1e6, 2.0, True, unit="MB"
    )


def scaling(repeats: int, quick: bool) -> Iterator[Row]:
    """The slope of log time against log size. Noise is left out."""
    sizes = {
        "d": ([32, 64, 128, 256, 512, 1000], "quadratic: slope 2 in log-log", 2.1),
        "B": ([2000, 4000, 8000, 16_000, 32_000], LINEAR, 1.15),
        "k": ([4, 8, 16, 32], LINEAR, 1.15),
    }
    for name, (values, law, most) in sizes.items():
        if quick:
            values = values[:-1]
        seconds, noisy = [], []
        for value in values:
            B, d, k = (
                value if name == "B" else 4000,
                value if name == "d" else 512,
                value if name == "k" else 1,
            )
            X = data(B, d)
            for made, found in (
                (without_noise(model(d, B, n_components=k)), seconds),
                (model(d, B, n_components=k), noisy),
            ):
                warm(made, X)
                found += best(lambda X=X, m=made: m.learn_array(X), repeats=max(repeats // 3, 3))
        slope = np.polyfit(np.log(values), np.log(seconds), 1)[0]
        yield Row(
            f"cost against {name}, {values[0]} to {values[-1]}",
            law,
            float(slope),
            most,
            True,
            unit="",
            detail={f"{name} = {v}, ms": s * 1e3 for v, s in zip(values, seconds, strict=True)}
            | {f"{name} = {v}, ms with noise": s * 1e3 for v, s in zip(values, noisy, strict=True)},
        )
    counts = [100, 200, 400, 800]
    X, seconds = data(400, 16), []
    for count in counts:
        made = [without_noise(model(16, 400)) for _ in range(3)]
        seconds += best(
            lambda c=count, made=made, X=X: [
                m.learn_array(X) for m in [made.pop()] for _ in range(c)
            ],
            repeats=3,
        )
    slope = np.polyfit(np.log(counts), np.log(seconds), 1)[0]
    yield Row(
        f"cost against batches, {counts[0]} to {counts[-1]}",
        LINEAR,
        float(slope),
        1.15,
        True,
        unit="",
        detail={f"batches = {c}, ms": s * 1e3 for c, s in zip(counts, seconds, strict=True)},
    )


def starting(repeats: int) -> Iterator[Row]:
    empty = [sys.executable, "-c", "pass"]
    for what, command in (
        ("import of `stream_dppca`", [sys.executable, "-c", "import stream_dppca"]),
        ("`stream-dppca --help`", [sys.executable, "-m", "consumers.cli", "--help"]),
    ):
        run, base = best(
            *(
                lambda c=c: subprocess.run(c, check=True, capture_output=True)
                for c in (command, empty)
            ),
            repeats=max(repeats // 2, 3),
            clock=time.perf_counter,
        )
        yield Row(what, "half a second", run, 0.5, True, unit="s", detail={"python alone": base})


# The report


def markdown(rows: list[Row], about: dict[str, str]) -> str:
    """The table, then the reasons for missed targets."""
    lines = ["Measured on " + ", ".join(f"{k} {v}" for k, v in about.items()) + ".", ""]
    header = ["what", "against", "measured", "target", "met", "detail"]
    lines.append(table(header, (_cells(r) for r in rows)))
    missed = [f"- {r.what}, against {r.against}: {r.limit}" for r in rows if r.met is False]
    if missed:
        lines += ["", "What keeps the missed ones from their targets:", "", *missed]
    return "\n".join(lines) + "\n"


def _cells(r: Row) -> list[str]:
    bound = "at most" if r.at_most else "at least"
    # The slopes are made of many figures; the plot has them.
    detail = "" if r.unit == "" else ", ".join(f"{k} {v:.3g}" for k, v in r.detail.items())
    target = "" if r.target is None else f"{bound} {r.target:g} {r.unit}"
    met = {True: "yes", False: "**no**", None: ""}[r.met]
    return [r.what, r.against, f"{r.value:.3g} {r.unit}", target, met, detail]


def readme_table(rows: list[Row]) -> str:
    """The README's table: processor time of a batch, over that of peers that are not private."""
    peers = {
        "naive": "the same sums in plain numpy",
        "incremental": "`StandardScaler` and `IncrementalPCA`",
    }
    found: dict[str, dict[int, float]] = {name: {} for name in peers}
    for row in rows:
        if row.part in peers:
            found[row.part][int(row.what.split("d = ")[1])] = (
                row.detail["ms"] / row.detail["peer ms"]
            )
    sizes = sorted({d for of in found.values() for d in of})
    lines = [
        f"| time of `DPPCA`, divided by that of | {' | '.join(f'd = {d}' for d in sizes)} |",
        "|" + " --- |" * (len(sizes) + 1),
    ]
    for name, title in peers.items():
        cells = (f"{found[name][d]:.2g}" if d in found[name] else "" for d in sizes)
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def plot(rows: list[Row], path: Path) -> None:
    """Milliseconds against d, B, k and the number of batches, in log-log."""
    slopes = [r for r in rows if r.what.startswith("cost against")]
    figure, beside = log_axes(10, len(slopes))
    for ax, row in zip(beside, slopes, strict=True):
        for key, label in (("ms", "without noise"), ("ms with noise", "with noise")):
            points = [
                (float(name.split(" = ")[1].split(",")[0]), value)
                for name, value in row.detail.items()
                if name.endswith(f", {key}")
            ]
            if points:
                x, y = (np.array(side) for side in zip(*points, strict=True))
                ax.loglog(x, y, "o-", label=label)
        ax.loglog(x[-1] / np.array([8, 1]), y[-1] / np.array([8, 1]), "k:", label="linear")
        ax.set_xlabel(row.what.split()[2].rstrip(","))
    beside[0].set_ylabel("ms")
    beside[0].legend(frameon=False)
    save(figure, path)


def about() -> dict[str, str]:
    model_name = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    packages = (
        "numpy",
        "river",
        "scikit-learn",
        "pandas",
        "opendp",
        "kafka-python",
        "confluent-kafka",
    )
    return {"cpu": model_name, "python": platform.python_version()} | {
        name: version(name) for name in packages
    }


def service(quick: bool) -> Iterator[Row]:
    from benchmarks.service import service  # needs a broker

    return service(quick)


def parts(quick: bool) -> dict[str, Callable[[], Iterator[Row]]]:
    """The parts of the benchmark, by name."""
    repeats = 5 if quick else 30
    return {
        "noise": lambda: noise_against_opendp(repeats),
        "naive": lambda: arrays_against_naive(repeats),
        "incremental": lambda: arrays_against_incremental_pca(repeats),
        "moments": lambda: second_moments(max(repeats // 5, 2)),
        "dicts": lambda: dicts(repeats),
        "frames": lambda: frames(repeats),
        "memory": lambda: memory(1000 if quick else 10_000),
        "scaling": lambda: scaling(repeats, quick),
        "starting": lambda: starting(repeats),
        "service": lambda: service(quick),
    }


def other_rows(path: Path, measured: Collection[str]) -> list[Row]:
    """The rows of parts that are not measured now, as they were."""
    if not path.exists():
        return []
    found = json.loads(path.read_text())["rows"]
    names = {field.name for field in fields(Row)}
    rows = [Row(**{k: v for k, v in row.items() if k in names}) for row in found]
    others = set(parts(True)) - set(measured)
    return [row for row in rows if row.part in others]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.speed")
    names = list(parts(True))
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="parts to measure")
    parser.add_argument("--docs", action="store_true", help="rewrite docs/speed.md, too")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    console = Console()
    rows = other_rows(args.out / "speed.json", args.only)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("speed", total=len(args.only))
        for name in args.only:
            for row in parts(args.quick)[name]():
                rows.append(replace(row, part=name))
                said = "MISS" if row.met is False else "met " if row.met else "    "
                progress.console.print(f"{said} {row.what} | {row.against}: {row.value:.3g}")
            progress.advance(task)
    rows.sort(key=lambda row: names.index(row.part))
    args.out.mkdir(parents=True, exist_ok=True)
    text = markdown(rows, about())
    (args.out / "speed.md").write_text(text)
    (args.out / "speed.json").write_text(
        json.dumps({"about": about(), "rows": [asdict(r) | {"met": r.met} for r in rows]}, indent=1)
    )
    if args.docs:
        write_docs(text, DOCS / "speed.md", "speed")
        write_docs(readme_table(rows), DOCS.parent / "README.md", "speed")
        plot(rows, DOCS / "figures" / "speed.svg")
    console.print(text, markup=False)
    met = [row.met for row in rows if row.met is not None]
    console.print(f"{sum(met)} of {len(met)} targets met; see {args.out}/speed.md")


if __name__ == "__main__":
    main()

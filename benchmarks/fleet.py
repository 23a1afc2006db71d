"""Number of devices that privacy per device needs: simulated fleets, and one of real servers.

    pip install -e '.[bench]'
    python -m benchmarks.fleet                             # about ten minutes on one core
    python -m benchmarks.fleet --only 'd10*' --seeds 3     # some of it
    python -m benchmarks.fleet --smd path/to/smd.npz --docs  # also writes docs/subjects.md
    python -m benchmarks.fleet --render                    # tables again, from the JSON

Records are independent, with eigenvalues 1, .1, .1, ...; centre and scales are known unless a table
says "learned". The number of records per device and round follows Zipf's law with a mean of 7.5; of
each device the mean over its first four records counts. The sine is that of the angle between the
first component and the truth, after the last round; the tables have medians over the seeds.

Results: `fleet.json` and `fleet.md` in `--out`; with `--docs` also `docs/subjects.md`, between its
markers. The noise is seeded, of the same law as in production.
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
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from stream_dppca import DPPCA, PerSubject, plan_subjects
from stream_dppca.subjects import SubjectTable

from .real_data import Missing, Paths, truth
from .real_data import _smd as smd_machines

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
START, END = "<!-- fleet: begin -->", "<!-- fleet: end -->"
DELTA = 1e-6
#: Rows that are drawn, and given to the estimator, at once.
CHUNK = 50_000
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Cell:
    """A fleet, and the goals that are set for it."""

    name: str
    d: int
    devices: int
    epsilon: float
    most: float | None = None  #: largest sine that is good enough
    title: str = ""
    presence: float = 1.0  #: share of the devices that sends something in a round
    period: int = 1
    horizon: int | None = None
    rounds: int = 1
    busy: bool = False  #: a quarter of the devices is busy, with a direction of its own
    settings: dict[str, Any] = field(default_factory=dict)


LEARNED = {"center": "mean", "scales": "learn"}
CELLS = (
    Cell("d10", 10, 500, 1.0, 0.1),
    Cell("d50", 50, 2700, 1.0, 0.1),
    Cell("d50-eps4", 50, 1250, 4.0, 0.1),
    Cell("d200", 200, 17_000, 1.0, 0.1),
    Cell("busy", 10, 20_000, 1.0, 0.02, "a busy quarter", busy=True),
    Cell("hour", 50, 100_000, 1.0, 0.016, "eps per day, after the first hour", 0.9, period=24),
    Cell(
        "year", 50, 100_000, 1.0, 0.05, "eps per year, after the first day", period=365, horizon=365
    ),
    Cell("d10-week", 10, 500, 1.0, None, "after seven days", rounds=7),
    Cell("d10-one", 10, 500, 1.0, None, "one record per device", settings={"records": 1}),
    Cell("d10-learned", 10, 2000, 1.0, None, "learned, second day", rounds=2, settings=LEARNED),
    Cell("d10-learned-week", 10, 2000, 1.0, None, "learned, day 8", rounds=8, settings=LEARNED),
    Cell("d50-learned", 50, 10_000, 1.0, None, "learned, second day", rounds=2, settings=LEARNED),
)


def zipf(rng: np.random.Generator, devices: int, mean: float = 7.5, most: int = 200) -> Array:
    """Records per device: P(n) ~ n^-s for n up to `most`, with this mean."""
    n = np.arange(1, most + 1)
    low, high = 1.0, 4.0
    for _ in range(60):
        s = (low + high) / 2
        p = n**-s / np.sum(n**-s)
        low, high = (s, high) if p @ n > mean else (low, s)
    return rng.choice(n, devices, p=p)


def rounds_of(cell: Cell, seed: int) -> Iterator[Iterator[tuple[Array, Array]]]:
    """The rounds of a stream: rows and devices, in pieces, in the order of their arrival."""
    rng = np.random.default_rng([seed, cell.d, cell.devices])
    directions = np.linalg.qr(rng.standard_normal((cell.d, 2)))[0].T
    activity = zipf(rng, cell.devices)
    if cell.busy:
        activity = np.where(np.arange(cell.devices) < cell.devices // 4, 100, 2)

    def pieces() -> Iterator[tuple[Array, Array]]:
        there = rng.random(cell.devices) < cell.presence
        ids = rng.permutation(np.repeat(np.flatnonzero(there), activity[there]))
        for start in range(0, len(ids), CHUNK):
            who = ids[start : start + CHUNK]
            own = np.where(who < cell.devices // 4, 1, 0) if cell.busy else np.zeros(len(who), int)
            X = rng.standard_normal((len(who), cell.d)) * np.sqrt(0.1)
            X += rng.standard_normal((len(who), 1)) * np.sqrt(0.9) * directions[own]
            yield X, who

    for _ in range(cell.rounds):
        yield pieces()


def direction(cell: Cell, seed: int) -> Array:
    """The component of the fleet, in units of the standard deviations if those are learned."""
    rng = np.random.default_rng([seed, cell.d, cell.devices])
    v = np.asarray(np.linalg.qr(rng.standard_normal((cell.d, 2)))[0][:, 0])
    if cell.settings.get("scales") != "learn":
        return v
    sd = np.sqrt(0.1 + 0.9 * v**2)
    covariance = 0.1 * np.eye(cell.d) + 0.9 * np.outer(v, v)
    return np.asarray(np.linalg.eigh(covariance / np.outer(sd, sd))[1][:, -1])


def sine(w: Array, v: Array) -> float:
    return float(np.linalg.norm(w - v * (v @ w)))


def model(cell: Cell, seed: int) -> DPPCA:
    settings = {"center": "none", "scales": None} | cell.settings
    return DPPCA(
        features=tuple(range(cell.d)),
        epsilon=cell.epsilon,
        delta=DELTA,
        unit=PerSubject(
            "device",
            places=cell.devices,
            period=cell.period,
            horizon=cell.horizon,
            records=settings.pop("records", 4),
        ),
        seed=seed,
        **settings,
    )


def run_cell(cell: Cell, seeds: int, tick: Callable[[], None]) -> dict[str, Any]:
    """Sines after the last round, and the time of a run."""
    sines, closing = [], []
    for seed in range(seeds):
        pca = model(cell, seed)
        for pieces in rounds_of(cell, seed):
            for X, who in pieces:
                pca.learn_array(X, subjects=who)
            before = time.process_time()
            pca.close_round()
            closing.append(time.process_time() - before)
        components = pca.components
        sines.append(sine(components[0], direction(cell, seed)) if len(components) else 1.0)
        tick()
    learns = cell.settings.get("scales") == "learn"
    errors = plan_subjects(
        d=cell.d,
        epsilon=cell.epsilon,
        delta=DELTA,
        subjects=cell.devices,
        presence=cell.presence,
        period=cell.period,
        horizon=cell.rounds,
        rows=1.0 if "records" in cell.settings else 2.0,
        center="mean" if learns else "none",
        scales="learn" if learns else None,
    ).noise_error
    return {
        "d": cell.d,
        "devices": cell.devices,
        "epsilon": cell.epsilon,
        "period": cell.period,
        "rounds": cell.rounds,
        "title": cell.title,
        "most": cell.most,
        "sine": sines,
        "plan": None if cell.busy or not errors else errors[-1][1],
        "close_s": float(np.median(closing)),
    }


# Servers


def smd_days(paths: Paths) -> tuple[list[Array], Array]:
    """Each day of each machine of SMD, standardised as a whole, and the first component of all."""
    machines = smd_machines(paths)
    X = np.concatenate(machines)
    found = truth(X)
    spread = X.std(axis=0)
    usable = spread > 0
    Z = [(m - X.mean(axis=0)) / np.where(usable, spread, 1.0) for m in machines]
    days = [m[start : start + 1440] for m in Z for start in range(0, len(m), 1440)]
    return days, np.asarray(found.vectors[:, 0])


def run_smd(
    paths: Paths, seeds: int, tick: Callable[[], None], epsilon: float, rows: int
) -> dict[str, Any]:
    """All days at once, a day per subject, with `rows` records spread over the day."""
    days, v = smd_days(paths)
    sines = []
    exact = np.zeros((len(v), len(v)))
    for day in days:
        some = day[:: max(len(day) // rows, 1)][:rows]
        exact += some.T @ some / len(some)
    for seed in range(seeds):
        pca = DPPCA(
            features=tuple(range(len(v))),
            epsilon=epsilon,
            delta=DELTA,
            unit=PerSubject("day", places=len(days), records=rows),
            center="none",
            scales=None,
            seed=seed,
        )
        for number, day in enumerate(days):
            some = day[:: max(len(day) // rows, 1)][:rows]
            pca.learn_array(np.ascontiguousarray(some), subjects=[number] * len(some))
        pca.close_round()
        sines.append(sine(pca.components[0], v) if len(pca.components) else 1.0)
        tick()
    return {
        "subjects": len(days),
        "d": len(v),
        "epsilon": epsilon,
        "rows": rows,
        "sine": sines,
        "without_noise": sine(np.linalg.eigh(exact)[1][:, -1], v),
    }


# The table


def run_table(devices: int = 100_000, d: int = 10) -> dict[str, Any]:
    """Time per record and memory per subject of the table, rows not counted."""
    rng = np.random.default_rng(0)
    ids = rng.permutation(np.repeat(np.arange(devices), zipf(rng, devices)))
    X = rng.standard_normal((CHUNK, d))
    text = np.array([f"device-{i:06d}" for i in ids.tolist()], dtype=object)
    cell = Cell("", d, devices, 1.0)
    seconds = {}
    for name, names in (("integers", ids), ("text", text)):
        pca, before = model(cell, 0), time.process_time()
        for start in range(0, len(ids), CHUNK):
            part = names[start : start + CHUNK]
            pca.learn_array(X[: len(part)], subjects=part)
        seconds[name] = (time.process_time() - before) / len(ids) * 1e6
    tracemalloc.start()
    before_bytes = tracemalloc.get_traced_memory()[0]
    for start in range(0, len(ids), CHUNK):
        part = text[start : start + CHUNK]
        pca = model(cell, 0) if start == 0 else pca
        pca.learn_array(X[: len(part)], subjects=part)
    room = tracemalloc.get_traced_memory()[0] - before_bytes
    tracemalloc.stop()
    table = pca._slots
    assert isinstance(table, SubjectTable)  # noqa: S101
    return {"us_per_record": seconds, "bytes_per_subject": (room - table._rows.nbytes) / devices}


# Results


def number(value: float) -> str:
    return f"{value:.3f}"


def render(results: dict[str, Any]) -> str:
    lines = [
        "| devices | d | epsilon | rounds per period | | sine, median | worst | goal | met "
        "| `plan` |",
        "|" + " --- |" * 10,
    ]
    for found in results["cells"].values():
        most = "" if found["most"] is None else number(found["most"])
        median = float(np.median(found["sine"]))
        met = "" if found["most"] is None else "yes" if median <= found["most"] else "**no**"
        planned = "" if found["plan"] is None else number(found["plan"])
        lines.append(
            f"| {found['devices']} | {found['d']} | {found['epsilon']:g} | {found['period']} | "
            f"{found['title']} | **{number(median)}** | "
            f"{number(max(found['sine']))} | {most} | {met} | {planned} |"
        )
    if results.get("smd"):
        lines += [
            "",
            "| SMD servers: days | records per day | epsilon | sine, median | without noise |",
            "|" + " --- |" * 5,
        ]
        for found in results["smd"].values():
            lines.append(
                f"| {found['subjects']} | {found['rows']} | {found['epsilon']:g} | "
                f"**{number(float(np.median(found['sine'])))}** | "
                f"{number(found['without_noise'])} |"
            )
    if results.get("table"):
        table = results["table"]
        times = " or ".join(f"{us:.1f} ({name})" for name, us in table["us_per_record"].items())
        lines += [
            "",
            f"The table of subjects takes {times} microseconds per record and "
            f"{table['bytes_per_subject']:.0f} bytes per subject, rows not counted.",
        ]
    about = results.get("about", {})
    lines += ["", f"{about.get('seeds')} seeds, {about.get('date')}, {about.get('machine')}."]
    return "\n".join(lines) + "\n"


def write_docs(results: dict[str, Any]) -> None:
    """Put the tables between their markers."""
    page = DOCS / "subjects.md"
    before, rest = page.read_text().split(START)
    page.write_text(f"{before}{START}\n\n{render(results)}\n{END}{rest.split(END)[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=11)
    parser.add_argument("--only", default="*", help="names of cells, with wildcards")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--docs", action="store_true", help="write docs/subjects.md as well")
    parser.add_argument("--render", action="store_true", help="tables again, from the JSON")
    parser.add_argument("--smd", type=Path, default=Paths.smd)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / "fleet.json"
    results = json.loads(file.read_text()) if file.exists() else {"cells": {}}
    if not arguments.render:
        run(arguments, results, file)
    (arguments.out / "fleet.md").write_text(render(results))
    if arguments.docs:
        write_docs(results)
    print(render(results))


def run(arguments: argparse.Namespace, results: dict[str, Any], file: Path) -> None:
    cells = [cell for cell in CELLS if fnmatch.fnmatch(cell.name, arguments.only)]
    servers = [(8.0, 4), (8.0, 64), (4.0, 64), (2.0, 64)]
    servers = servers if fnmatch.fnmatch("smd", arguments.only) else []
    started = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("", total=arguments.seeds * (len(cells) + len(servers)))

        def tick() -> None:
            progress.advance(task)

        for cell in cells:
            progress.update(task, description=cell.name)
            results["cells"][cell.name] = run_cell(cell, arguments.seeds, tick)
            file.write_text(json.dumps(results, indent=1))
        for epsilon, rows in servers:
            progress.update(task, description=f"smd, epsilon {epsilon:g}")
            try:
                found = run_smd(Paths(smd=arguments.smd), arguments.seeds, tick, epsilon, rows)
            except Missing as missing:
                progress.print(f"smd: left out, {missing}")
                break
            results.setdefault("smd", {})[f"{epsilon:g} {rows}"] = found
        if fnmatch.fnmatch("table", arguments.only):
            results["table"] = run_table()
    order = [cell.name for cell in CELLS]
    results["cells"] = {name: results["cells"][name] for name in order if name in results["cells"]}
    results["about"] = {
        "date": datetime.now(tz=UTC).date().isoformat(),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "seeds": arguments.seeds,
        "minutes": (time.monotonic() - started) / 60,
        "command": "python -m benchmarks.fleet " + " ".join(sys.argv[1:]),
    }
    file.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()

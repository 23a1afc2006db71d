"""Tables and figures from `accuracy.json`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Result = dict[str, Any]


# Tables


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}" if value < 0.0995 else f"{value:.3f}"


def table(header: list[str], rows: Iterable[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def median_of(result: dict[str, Any], method: str) -> float | None:
    found = result["methods"].get(method)
    return None if found is None else found["median"]


def ratio(result: dict[str, Any], method: str) -> float | None:
    ours, theirs = median_of(result, "DPPCA"), median_of(result, method)
    return None if ours is None or not theirs else ours / theirs


def render(results: dict[str, Any]) -> str:
    """All tables, as Markdown."""
    cells = [r for r in results["cells"].values() if r["group"] != "drift"]
    drifts = [r for r in results["cells"].values() if r["group"] == "drift"]
    about = results["about"]
    parts = [
        f"Measured {about['date']} on {about['machine']}, one core, "
        f"{about['minutes']:.0f} minutes: `{about['command']}`. Medians; epsilon 1, delta 1e-6, "
        "replace-one, one pass, unless said. `DPPCA` with its default settings; everything else "
        "with its best setting, given free."
    ]
    targets = [r for r in cells if r["group"] == "target"]
    if targets:
        parts += ["### The targets", _target_table(targets), _peer_table(targets)]
    many = [r for r in cells if r["group"] == "many features"]
    if many:
        parts += ["### Many features", _features_table(many)]
    once = [r for r in cells if r["group"] == "one batch" and r["target"] is not None]
    if once:
        parts += ["### One batch", _one_batch_table(once)]
    shown = (*targets, *many, *once)
    others = [r for r in cells if r not in shown and not r["group"].startswith("curve")]
    if others:
        parts += ["### Everywhere else", _robustness_table(others)]
    if missed := _missed(cells):
        parts += ["### What keeps the missed ones from their targets", missed]
    if drifts:
        parts += ["### Streams that change", _drift_tables(drifts)]
    if cells:
        parts += ["### What `plan()` says", _plan_table(cells)]
    if results.get("claims"):
        rows = ([r["claim"], r["setting"], number(r["median"])] for r in results["claims"])
        parts += [
            "### What the paper says",
            "d = 5, epsilon 1 unless said, medians of 7 seeds. DP-PCA: `PaperDPPCA`, K = 1, "
            "a = 0.5, C1 = 8, eight batches, steps 50/(1 + t).",
            table(["claim", "setting", "sin"], rows),
        ]
    return with_zeros("\n\n".join(parts)) + "\n"


def with_zeros(text: str) -> str:
    """Write .5 as 0.5, also in names of problems that results have."""
    return re.sub(r"(?<![\w.])\.(?=\d)", "0.", text)


def _seeds(result: dict[str, Any]) -> str:
    ours = len(result["methods"]["DPPCA"]["errors"])
    slow = len(result["methods"].get("Analyze-Gauss", result["methods"]["DPPCA"])["errors"])
    return f"{ours}" if ours == slow else f"{ours} ({slow})"


def _target_table(cells: list[dict[str, Any]]) -> str:
    rows = []
    for r in cells:
        to_ag, to_stream = ratio(r, "Analyze-Gauss"), ratio(r, "clipped Oja")
        met = "-" if to_ag is None else "yes" if to_ag <= r["target"] else "**no**"
        rows.append(
            [
                r["problem"],
                str(r["d"]),
                f"{r['n']:g}",
                str(r["batch_size"]),
                _seeds(r),
                number(median_of(r, "DPPCA")),
                number(median_of(r, "Analyze-Gauss")),
                f"**{to_ag:.2f}**" if to_ag is not None else "-",
                f"{r['target']:g}",
                met,
                number(median_of(r, "clipped Oja")),
                f"{to_stream:.2f}" if to_stream is not None else "-",
                "-" if to_stream is None else "yes" if to_stream <= 0.7 else "**no**",
            ]
        )
    header = [
        "problem",
        "d",
        "n",
        "B",
        "seeds",
        "DPPCA",
        "Analyze-Gauss",
        "ratio",
        "at most",
        "met",
        "clipped Oja",
        "ratio",
        "at most 0.7",
    ]
    return (
        "Sine of the angle after one pass. Analyze-Gauss sees all records at once and releases "
        "once; `DPPCA` and clipped Oja (Eq. 6) stream and release after every batch. Seeds in "
        "brackets: of Analyze-Gauss, where it is slow.\n\n" + table(header, rows)
    )


def _one_batch_table(cells: list[dict[str, Any]]) -> str:
    rows = []
    for r in cells:
        ours, theirs = r["methods"]["DPPCA, once"], median_of(r, "Analyze-Gauss") or math.nan
        least = ours["median"] / theirs
        rows.append(
            [
                r["problem"],
                str(r["d"]),
                f"{r['n']:g}",
                _seeds(r),
                f"**{number(ours['median'])}**",
                number(ours["worst"]),
                number(theirs),
                f"**{least:.2f}**",
                f"{r['target']:g}",
                "yes" if least <= r["target"] else "**no**",
            ]
        )
    header = [
        "problem",
        "d",
        "n",
        "seeds",
        "DPPCA",
        "worst seed",
        "Analyze-Gauss",
        "ratio",
        "at most",
        "met",
    ]
    return (
        "All records are one batch, and that is known (`batches=1`, `stream-dppca run --once`, "
        "`fit` of `PrivatePCA`). For `DPPCA` nothing is known; Analyze-Gauss is given centre, "
        "scales and the best of five clips.\n\n" + table(header, rows)
    )


def _features_table(cells: list[dict[str, Any]]) -> str:
    rows = [
        [
            r["problem"],
            str(r["d"]),
            str(r["k"]),
            f"{r['n']:g}",
            str(r["batch_size"]),
            _seeds(r),
            f"**{number(median_of(r, 'DPPCA'))}**",
            f"{r['most']:g}",
            "yes" if r["methods"]["DPPCA"]["median"] <= r["most"] else "**no**",
            number(median_of(r, "Analyze-Gauss")),
        ]
        for r in cells
    ]
    header = ["problem", "d", "k", "n", "B", "seeds", "DPPCA", "at most", "met", "Analyze-Gauss"]
    return (
        "Slow spectra, real pictures, and flat spectra for comparison; sine of the largest angle. "
        "Fashion-MNIST is centred by its mean, as if that were public.\n\n" + table(header, rows)
    )


#: Largest ratio to the error of Analyze-Gauss, with several components of 200 features.
SEVERAL_AT_MOST = 1.3


def _missed(cells: list[dict[str, Any]]) -> str:
    """For every target that is missed, the measurements of its limit."""
    one_batch = {(r["problem"], r["d"], r["k"]): r for r in cells if r["group"] == "one batch"}
    lines = []
    for r in cells:
        to_ag, alone = ratio(r, "Analyze-Gauss"), one_batch.get((r["problem"], r["d"], r["k"]))
        if r["group"] == "many features" and r["methods"]["DPPCA"]["median"] > r["most"]:
            said = f"{number(median_of(r, 'DPPCA'))} against {r['most']:g}"
            best = min((m["median"], name) for name, m in r["methods"].items() if name != "DPPCA")
            limit = (
                f"the best of the others, {best[1]}, has {number(best[0])} with all settings free"
            )
        elif r["group"] == "target" and to_ag is not None and to_ag > r["target"]:
            said = f"{to_ag:.2f} x Analyze-Gauss against {r['target']:g}"
            limit = f"without privacy the error is {number(median_of(r, 'eigh'))}"
        elif r["target"] and (once := median_of(r, "DPPCA, once")):
            theirs = r["methods"]["Analyze-Gauss"]
            if once <= r["target"] * theirs["median"]:
                continue
            said = f"{once / theirs['median']:.2f} x Analyze-Gauss against {r['target']:g}"
            limit = f"its best clip, the quantile {theirs['setting'][5:]} of the lengths, is given"
        elif r["group"] == "components" and alone and to_ag and to_ag > SEVERAL_AT_MOST:
            said = f"{to_ag:.2f} x Analyze-Gauss against {SEVERAL_AT_MOST:g}"
            once, ag = median_of(alone, "DPPCA, once"), median_of(alone, "Analyze-Gauss")
            rest = (
                f" but {once / ag:.2f} x if it kept nothing back for later releases"
                if once and ag
                else ""
            )
            limit = f"with all records in one batch {ratio(alone, 'Analyze-Gauss'):.2f} x,{rest}"
        else:
            continue
        lines.append(f"- {r['group']}, {r['name']}: {said}; {limit}.")
    return "\n".join(lines)


def _peer_table(cells: list[dict[str, Any]]) -> str:
    names = list(cells[0]["methods"])
    rows = [
        [r["problem"], str(r["d"]), f"{r['n']:g}", *(number(median_of(r, name)) for name in names)]
        for r in cells
    ]
    return (
        "All methods, sine of the angle. `eigh` and Oja are not private. The noisy power method "
        "reads all records many times. `paper` is Algorithm 3 to the letter (K = 1, a = 0.5, "
        "C1 = 8, 3 seeds), at sizes far below its conditions.\n\n"
        + table(["problem", "d", "n", *names], rows)
    )


def _robustness_table(cells: list[dict[str, Any]]) -> str:
    rows = []
    for r in cells:
        best = ratio(r, "Analyze-Gauss")
        ours = r["methods"]["DPPCA"]
        rows.append(
            [
                r["group"] + (" (variance missed)" if r["loss"] == "variance" else ""),
                r["name"],
                _seeds(r),
                number(ours["median"]),
                number(ours["worst"]),
                number(median_of(r, "eigh")),
                number(median_of(r, "Analyze-Gauss")),
                "-" if best is None else f"{best:.2f}",
                number(median_of(r, "noisy power method")),
                number(median_of(r, "clipped Oja")),
            ]
        )
    header = [
        "what",
        "problem",
        "seeds",
        "DPPCA",
        "worst seed",
        "eigh",
        "Analyze-Gauss",
        "ratio to it",
        "noisy power method",
        "clipped Oja",
    ]
    return (
        "With more than one component the sine is that of the largest angle between the two "
        "subspaces. Near a tie the loss is the share of the first component's variance that is "
        "missed. Clipped Oja has two batch sizes to choose from here, n/8 and n/4, up to seven "
        "above.\n\n" + table(header, rows)
    )


def _drift_tables(drifts: list[dict[str, Any]]) -> str:
    once = [r for r in drifts if r["change"] is not None]
    slow = [r for r in drifts if r["change"] is None]
    never = lambda t: "not in 20" if t is None else str(t)  # noqa: E731
    first = table(
        [
            "G(0.1), change at batch 21",
            "before",
            "batches to 0.3",
            "to 0.1",
            "fresh start to 0.3",
            "to 0.1",
            "after 20",
        ],
        [
            [
                r["name"],
                number(r["before"]),
                never(r["to 0.3"]),
                never(r["to 0.1"]),
                never(r["fresh to 0.3"]),
                never(r["fresh to 0.1"]),
                number(r["end"]),
            ]
            for r in once
        ],
    )
    second = table(
        ["G(0.1), turning all the time", "median over batches 21-40", "worst of them"],
        [[r["name"], number(r["steady"]), number(r["worst"])] for r in slow],
    )
    return first + "\n\n" + second


def _plan_table(cells: list[dict[str, Any]]) -> str:
    rows, off, seen = [], 0, set()
    for r in cells:
        if r["plan"] is None or r["name"] in seen:
            continue
        seen.add(r["name"])
        measured = median_of(r, "DPPCA")
        factor = r["plan"] / measured
        off += not 0.5 <= factor <= 2
        within = "yes" if 0.5 <= factor <= 2 else "**no**"
        rows.append([r["name"], number(r["plan"]), number(measured), f"{factor:.2f}", within])
    return (
        "Given the spectrum's trace and gap. Outside a "
        f"factor 2: {off} of {len(rows)}.\n\n"
        + table(["problem", "planned", "measured", "factor", "within 2"], rows)
    )


def write_docs(text: str, path: Path, what: str = "accuracy") -> None:
    """Write between the markers of the file; the text around them is kept."""
    begin, end = (f"<!-- {what}: {edge} -->" for edge in ("begin", "end"))
    head, rest = path.read_text().split(begin)
    path.write_text(f"{head}{begin}\n\n{text}\n{end}{rest.split(end)[1]}")


# Figures

#: Method, label, colour, line.
CURVES = (
    ("DPPCA", "DPPCA: streaming", "#c1272d", "-o"),
    ("clipped Oja", "clipped Oja, Eq. 6: streaming", "#0b6e99", "-s"),
    ("Analyze-Gauss", "Analyze-Gauss: all data at once", "#555555", "-^"),
    ("eigh", "not private", "#aaaaaa", "--"),
)


def lower_bound(r: Result) -> float:
    """The shape of the paper's Theorem 5.3 with its open constant at 1."""
    l1, l2 = _eigenvalues(r["problem"])
    privacy = r["d"] / (r["epsilon"] * r["n"])
    bound = l1 / (l1 - l2) * (math.sqrt(r["d"] / r["n"]) + privacy) * math.sqrt(l2 / l1)
    return min(bound, 1.0)


def _eigenvalues(label: str) -> tuple[float, float]:
    """Eigenvalues of G(l2) and T(s)."""
    parameter = float(label[2:-1])
    return (1.0, parameter) if label[0] == "G" else (1 + parameter**2, parameter**2)


def draw(cells: dict[str, Result], folder: Path) -> str:
    """Draw the figures whose cells exist. Returns Markdown that shows the figures."""
    try:
        import matplotlib
    except ImportError:
        return "No figures: matplotlib is not installed.\n"
    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    results = [r for r in cells.values() if r["group"] != "drift" and r["k"] == 1]

    def pick(**wanted: Any) -> list[Result]:
        found = [r for r in results if all(r[key] == value for key, value in wanted.items())]
        return [r for r in found if r["problem"][:2] in ("G(", "T(") and " " not in r["problem"]]

    base = {"epsilon": 1.0}
    n_curve = [r for r in pick(problem="G(0.1)", d=50, **base) if r["group"] == "curve n"]
    d_curve = list(pick(problem="G(0.1)", n=100_000, batch_size=6250, **base))
    s_curve = [r for r in pick(d=200, n=100_000, batch_size=6250, **base) if r["problem"][0] == "T"]
    e_curve = pick(problem="G(0.1)", d=50, n=100_000, batch_size=3125)
    drifts = [r for r in cells.values() if r["group"] == "drift"]
    figures = (
        (
            "error-n",
            "records n",
            "G(0.1), d = 50, 16 batches, epsilon 1",
            n_curve,
            lambda r: r["n"],
        ),
        (
            "error-d",
            "features d",
            "G(0.1), n = 100 000, B = 6250, epsilon 1",
            d_curve,
            lambda r: r["d"],
        ),
        (
            "error-sigma",
            "sigma",
            "T(sigma), d = 200, n = 100 000, B = 6250, epsilon 1",
            s_curve,
            lambda r: float(r["problem"][2:-1]),
        ),
        (
            "error-epsilon",
            "epsilon",
            "G(0.1), d = 50, n = 100 000, B = 3125",
            e_curve,
            lambda r: r["epsilon"],
        ),
    )
    shown = ["### Figures"]
    for name, label, title, points, x in figures:
        if len({x(r) for r in points}) >= 2:
            _curve(points, x, label, title, folder / f"{name}.svg")
            shown.append(f"![Error against {label}: {title}](figures/{name}.svg)")
    if drifts:
        _drift(drifts, folder / "drift.svg")
        shown.append("![Error after each batch of streams that change](figures/drift.svg)")
    return "\n\n".join(shown) + "\n"


def log_axes(width: float = 4.6, columns: int = 1) -> tuple[Any, Any]:
    """A figure with one or more panels with log scales, side by side."""
    import matplotlib.pyplot as plt
    from matplotlib import ticker

    plt.rcParams.update({"svg.hashsalt": "stream-dppca", "font.size": 8, "svg.fonttype": "none"})
    figure, made = plt.subplots(1, columns, figsize=(width, 3.1), layout="constrained", sharey=True)
    for ax in [made] if columns == 1 else made:
        ax.grid(True, which="major", linewidth=0.4, alpha=0.5)
        ax.spines[["top", "right"]].set_visible(False)
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter(ticker.FuncFormatter(lambda y, _: f"{y:g}"))
        ax.yaxis.set_minor_locator(ticker.NullLocator())
    return figure, made


def save(figure: Any, path: Path) -> None:
    import matplotlib.pyplot as plt

    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _curve(
    points: list[Result], x: Callable[[Result], float], label: str, title: str, path: Path
) -> None:
    """Error against x, with the lower bound's shape."""
    by_x = {x(r): r for r in points}  # a point that two groups have is shown once
    points = [by_x[key] for key in sorted(by_x)]
    figure, ax = log_axes()
    for method, name, colour, line in CURVES:
        there = [r for r in points if median_of(r, method) is not None]
        xs, ys = [x(r) for r in there], [median_of(r, method) for r in there]
        ax.plot(xs, ys, line, color=colour, label=name, markersize=3.5, linewidth=1.3)
    bound = [lower_bound(r) for r in points]
    ax.plot(
        [x(r) for r in points],
        bound,
        ":",
        color="black",
        linewidth=1,
        label="shape of the paper's lower bound",
    )
    ax.set(xscale="log", xlabel=label, ylabel="sin(angle), median")
    ax.set_xticks(sorted(by_x), [f"{key:,.6g}".replace(",", " ") for key in sorted(by_x)])
    ax.minorticks_off()
    ax.set_title(title, fontsize=8)
    ax.legend(fontsize=6.5, frameon=False)
    save(figure, path)


def _drift(drifts: list[Result], path: Path) -> None:
    """Error after each batch, one panel for each number of features."""
    shown = ("jump 90 degrees", "jump 30 degrees", "turn 0.03 rad per batch")
    colours = ("#c1272d", "#0b6e99", "#7a9a01")
    figure, axes = log_axes(7.4, 2)
    for ax, d in zip(axes, (50, 200), strict=True):
        for what, colour in zip(shown, colours, strict=True):
            for r in drifts:
                if r["name"].startswith(what) and f"d={d} " in r["name"]:
                    batches = range(1, len(r["trace"]) + 1)
                    ax.plot(batches, r["trace"], color=colour, label=what, linewidth=1.3)
                    size = r["name"].split("B=")[1]
                    ax.set_title(f"G(0.1), d = {d}, B = {size}, epsilon 1", fontsize=8)
        ax.set(xlabel="batch")
    axes[0].set_ylabel("sin(angle), median")
    axes[0].legend(fontsize=6.5, frameon=False)
    save(figure, path)

"""`python -m stream_dppca`: learn from simulated telemetry and show what comes out."""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from . import DPPCA
from .telemetry import FEATURES, TRUE_DIRECTION, public_scaler, telemetry


def main(argv: list[str] | None = None) -> None:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(
        prog="python -m stream_dppca",
        description="Learn the main direction of a simulated telemetry stream, privately.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--records", type=int, default=200_000, help="length of the stream")
    parser.add_argument("--batch-size", type=int, default=5_000, help="records a release")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-6)
    args = parser.parse_args(argv)

    pca = DPPCA(
        features=FEATURES,
        epsilon=args.epsilon,
        delta=args.delta,
        batch_size=args.batch_size,
        center="pairs",
    )
    model = public_scaler() | pca
    console = Console()
    columns = (
        TextColumn("[bold]records"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[status]}"),
    )
    errors: list[float] = []
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=args.records, status="")
        for block in telemetry(chunk=1_000):
            model.learn_many(pd.DataFrame(block, columns=list(FEATURES)))
            if pca.n_batches > len(errors):
                errors.append(_sine(pca.components[0]))
                status = f"release {pca.n_batches}, sin(angle to truth) {errors[-1]:.3f}"
                progress.update(task, status=status)
            progress.update(task, completed=min(pca.n_seen, args.records))
            if pca.n_seen >= args.records:
                break
    if not errors:
        console.print("No batch was filled: use more --records or a smaller --batch-size.")
        return
    _show(console, pca, errors)


def _sine(w: np.ndarray) -> float:
    return float(np.linalg.norm(w - TRUE_DIRECTION * (TRUE_DIRECTION @ w)))


def _show(console: Console, pca: DPPCA, errors: list[float]) -> None:
    w = pca.components[0]
    truth = TRUE_DIRECTION * np.sign(TRUE_DIRECTION @ w)
    table = Table(title="the private component")
    for column in ("feature", "weight", "truth"):
        table.add_column(column, justify="left" if column == "feature" else "right")
    for j in np.argsort(-np.abs(w)):
        table.add_row(FEATURES[j], f"{w[j]:+.3f}", f"{truth[j]:+.3f}")
    console.print(table)
    shown = sorted({1, 2, 5, 10, 20, 50, 100, len(errors)} & set(range(1, len(errors) + 1)))
    path = ", ".join(f"{errors[t - 1]:.3f} after {t}" for t in shown)
    console.print(f"sin(angle to the truth): {path} releases")
    p = pca.privacy
    console.print(
        f"Every record is protected with epsilon = {p.epsilon:g}, delta = {p.delta:g} "
        f"({p.adjacency}, unit: a {p.unit}, {p.scope}), private: {str(p.private).lower()}."
    )


if __name__ == "__main__":
    main()

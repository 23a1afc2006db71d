"""Shows how much of a file has been read: a bar on standard error, if that is a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def shown_progress(name: str, *, lines: bool) -> Iterator[Callable[[float | None], object]]:
    """Yield a function that is told the share that has been read, None if it is not known.

    What is written to a terminal meanwhile stands above the bar, wrapped to its width. So there is
    no bar if `lines` of JSON are written to a terminal.
    """
    on_terminal = sys.stdout.isatty()
    if not sys.stderr.isatty() or (lines and on_terminal):
        yield lambda share: None
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=24),
        progress.TaskProgressColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(
        *columns, console=Console(stderr=True), transient=True, redirect_stdout=on_terminal
    ) as bar:
        task = bar.add_task(name, total=None)
        yield lambda share: bar.update(task, total=share and 1.0, completed=share or 0.0)

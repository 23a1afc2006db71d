"""Shows a progress bar on standard error, if that is a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@dataclass(frozen=True)
class Shown:
    """Functions that report progress while a file is read; without a bar, numbers are dropped."""

    progress: Callable[[int, int], None] = lambda slots, batches: None  #: so far
    share: Callable[[float], None] = lambda share: None  #: of the file that has been read
    write: Callable[[str], None] = _print  #: a line, above the bar


@contextlib.contextmanager
def shown_progress(name: str, *, quiet: bool) -> Iterator[Shown]:
    """Show a bar while a file is read. Without a terminal, or without rich, there is none."""
    if quiet or not sys.stderr.isatty():
        yield Shown()
        return
    try:
        from rich import progress as bars
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield Shown()
        return
    columns = (
        bars.SpinnerColumn(),
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(bar_width=24),
        bars.TaskProgressColumn(),
        bars.TextColumn("{task.fields[releases]:,} releases"),
        bars.TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=None, releases=0)
        yield Shown(
            lambda slots, batches: bar.update(task, releases=batches),
            lambda share: bar.update(task, total=1.0, completed=share),
            lambda line: bar.console.print(line, markup=False, highlight=False, soft_wrap=True),
        )

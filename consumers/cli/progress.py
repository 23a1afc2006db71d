"""Shows a progress bar on standard error, if that is a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

__all__ = ["shown_progress"]


@contextlib.contextmanager
def shown_progress(name: str, *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Yield a function to call with the numbers of slots and batches so far.

    Without a terminal, or without rich, it shows nothing.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda slots, batches: None
        return
    try:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    except ImportError:
        yield lambda slots, batches: None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.fields[slots]:,} slots, {task.fields[batches]:,} releases"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=None, slots=0, batches=0)
        yield lambda slots, batches: bar.update(task, slots=slots, batches=batches)

"""A bar that counts batches."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

__all__ = ["shown_progress"]


@contextlib.contextmanager
def shown_progress(
    name: str, total: int | None, *, shown: bool = True
) -> Iterator[Callable[[], None]]:
    """Yield a function to call after each batch; show a bar on a terminal if rich is installed.

    The bar counts batches; the duration of a batch and its content are not shown.
    """
    try:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    except ImportError:
        shown = False
    if not (shown and sys.stderr.isatty()):
        yield lambda: None
        return
    from rich.console import Console

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=total)
        yield lambda: bar.advance(task)

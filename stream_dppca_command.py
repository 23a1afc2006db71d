"""Starts the command `stream-dppca`.

Projects may have a package of their own that is called `consumers`. If Python finds it first, for
example through PYTHONPATH, the command says so. This module stands by itself: a part of
`consumers` could not be found then, and the imports of `stream_dppca` take half a second.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

__all__ = ["main"]


def main() -> int:
    """Run the command, unless another package hides ours."""
    spec = importlib.util.find_spec("consumers")
    found = Path((spec and spec.origin) or "").resolve()
    if found.parent != Path(__file__).resolve().parent / "consumers":
        sys.stderr.write(
            f"stream-dppca: Python finds {found} before the package `consumers` of stream-dppca. "
            "Run the command without that folder in PYTHONPATH.\n"
        )
        return 78
    from consumers.cli.entry import main as command

    return command()


if __name__ == "__main__":
    raise SystemExit(main())

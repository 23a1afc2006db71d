"""The public names are exactly those that are meant to be public."""

from __future__ import annotations

import subprocess
import sys

import benchmarks.baselines
import stream_dppca


def test_all_is_sorted_and_complete() -> None:
    for module in (stream_dppca, benchmarks.baselines):
        # Classes first, then functions, each by the alphabet; the linter sorts them so.
        assert list(module.__all__) == sorted(module.__all__, key=lambda n: (n != "DPPCA", n))
        for name in module.__all__:
            assert hasattr(module, name)


def test_importing_loads_nothing_heavy() -> None:
    """pandas takes a second; it waits until it is needed."""
    code = (
        "import sys, stream_dppca; "
        "print([m for m in ('pandas', 'sklearn', 'kafka', 'rich') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"

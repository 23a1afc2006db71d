"""The episodes so far, and the page that reports them."""

from __future__ import annotations

import json
import os
import platform
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import table

from .episodes import SESSION_SECONDS, TAKEOVER_SECONDS

PAGE = Path(__file__).parents[2] / "docs" / "torture.md"


def read(path: Path) -> list[dict[str, Any]]:
    """Episodes that are over; a line that was cut short by a crash is left out."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def totals(episodes: list[dict[str, Any]]) -> Counter[str]:
    """Count of each action, in episodes whose guarantees held."""
    done: Counter[str] = Counter()
    for episode in episodes:
        if "failed" not in episode:
            done.update(episode["counts"])
    return done


def page(episodes: list[dict[str, Any]], wanted: dict[str, int]) -> str:
    """The report as Markdown."""
    good = [e for e in episodes if "failed" not in e]
    done = totals(episodes)
    rows = [[what, str(n), str(done[what])] for what, n in wanted.items()]
    takeovers = np.array([t for e in good for t in e["takeover_s"]] or [np.nan])
    quantiles = ", ".join(
        f"{name} {np.quantile(takeovers, q):.1f} s"
        for name, q in (("median", 0.5), ("99 %", 0.99), ("longest", 1.0))
    )
    late = int(np.sum(takeovers > TAKEOVER_SECONDS))
    return "\n".join(
        (
            "# Torture test",
            "",
            "After this page you know what the service has survived, and how long a standby takes "
            "to take over.",
            "Models ran on a real broker, under load, each with an owner and a standby, while "
            "everything broke that can.",
            "`make torture` writes this page, and resumes where it was stopped.",
            "",
            table(["what", "wanted", "done"], rows),
            "",
            f"After each of {len(good)} episodes an independent client read the topics: "
            f"{sum(e['batches'] for e in good):,} batches, {sum(e['slots'] for e in good):,} "
            "slots. Every slot was in one batch, and every batch had one payload; there were no "
            "gaps. "
            f"{len(episodes) - len(good)} episodes failed.",
            "",
            f"{len(takeovers)} takeovers: {quantiles}; {late} took longer than the session timeout "
            f"({SESSION_SECONDS:g} s) and 5 s.",
            "",
            f"Measured on {platform.system()}, {os.cpu_count()} cores, Python "
            f"{platform.python_version()}, in {sum(e['seconds'] for e in episodes) / 3600:.1f} "
            "hours of episodes, several at a time.",
            "",
        )
    )

"""Score records with a release of somebody else's model, without this package.

    python examples/project_release.py release.json '{"cpu": 93.0, "memory": 41.5}'

A release is a JSON message on the output topic of the service. It holds everything that is needed
to score a record: the formulas are the functions below, which can be written in any language. In
Python, `stream_dppca.Projector.from_release` does the same for whole arrays and nested records.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any


def standardised(release: dict[str, Any], record: dict[str, Any]) -> list[float] | None:
    """Each feature in standard deviations from its mean; None if the record lacks one."""
    found = [0.0] * len(release["features"])
    for i, name in enumerate(release["features"]):
        value, deviation = record.get(name), release["deviation"][i]
        if not deviation > 0:
            continue  # without spread: it is left out
        if not isinstance(value, int | float) or not math.isfinite(value):
            return None
        z = (value - release["center"][i]) / release["scale"][i]
        clamp = release["clamp"][i] if release["clamp"] else math.inf
        if abs(z) > clamp:  # beyond the clamp there is the logarithm
            z = math.copysign(clamp * (1 + math.log(abs(z) / clamp)), z)
        found[i] = (z - release["mean"][i]) / deviation
    return found


def scores(release: dict[str, Any], u: list[float]) -> list[float]:
    """The position of a standardised record along each component."""
    return [sum(w_i * u_i for w_i, u_i in zip(w, u, strict=True)) for w in release["components"]]


def spe(release: dict[str, Any], u: list[float]) -> float:
    """The squared distance from the components."""
    rest = u
    for along, w in zip(scores(release, u), release["components"], strict=True):
        rest = [u_i - along * w_i for u_i, w_i in zip(rest, w, strict=True)]
    return math.hypot(*rest) ** 2


def t2(release: dict[str, Any], u: list[float]) -> float:
    """The squared distance along the components, in variances along each."""
    pairs = zip(scores(release, u), release["spread"], strict=True)
    return sum(along**2 / variance for along, variance in pairs if variance > 0)


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    release = json.loads(Path(sys.argv[1]).read_bytes())
    if not release["components"]:
        print(f"nothing to score with yet: {release['status']}")
        return 1
    u = standardised(release, json.loads(sys.argv[2]))
    if u is None:
        print("the record must have all of the features:", *release["features"])
        return 1
    print("scores:", *(f"{score:.4f}" for score in scores(release, u)))
    for name, score in {"spe": spe(release, u), "t2": t2(release, u)}.items():
        over = [
            limit["rate"] for limit in release["limits"].get(name, []) if score > limit["value"]
        ]
        usual = f"in the highest {100 * min(over):g} % of all records" if over else "not unusual"
        print(f"{name}: {score:.4f}, {usual}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

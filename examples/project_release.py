"""Score records with a release of somebody else's model, without this package.

    python examples/project_release.py release.json '{"cpu": 93.0, "memory": 41.5}'

A release is a JSON message on the output topic of the service. It holds everything that is needed
to score a record: the formulas are `standardised` and `scores` below, which can be written in any
language. In Python, `stream_dppca.Projector.from_release` does the same for whole arrays.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any


def standardised(release: dict[str, Any], record: dict[str, Any]) -> list[float]:
    """Each feature in standard deviations from its mean; a missing one is at its mean."""
    found = [0.0] * len(release["features"])
    for i, name in enumerate(release["features"]):
        value, deviation = record.get(name), release["deviation"][i]
        if isinstance(value, int | float) and math.isfinite(value) and deviation > 0:
            z = (value - release["center"][i]) / release["scale"][i]
            clamp = release["clamp"][i] if release["clamp"] else math.inf
            found[i] = (max(-clamp, min(clamp, z)) - release["mean"][i]) / deviation
    return found


def scores(release: dict[str, Any], record: dict[str, Any]) -> list[float]:
    """The position of a record along each component."""
    u = standardised(release, record)
    return [sum(w_i * u_i for w_i, u_i in zip(w, u, strict=True)) for w in release["components"]]


def anomaly(release: dict[str, Any], record: dict[str, Any]) -> float:
    """The distance of a record to the components, in standard deviations: larger is stranger."""
    u = standardised(release, record)
    for along, w in zip(scores(release, record), release["components"], strict=True):
        u = [u_i - along * w_i for u_i, w_i in zip(u, w, strict=True)]
    return math.hypot(*u)


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    release = json.loads(Path(sys.argv[1]).read_bytes())
    if not release["components"]:
        print(f"nothing to score with yet: {release['status']}")
        return 1
    record = json.loads(sys.argv[2])
    print("scores:", *(f"{score:.4f}" for score in scores(release, record)))
    print(f"anomaly: {anomaly(release, record):.4f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Torture the service, and report.

    python -m tests.torture [--kills 1000] [--zombies 100] [--restarts 100] [--lanes 2]

Episodes run side by side, each lane on a broker of its own. Finished episodes are kept in a file,
so that a stopped run can be resumed. The log of a failure is kept next to that file, and the other
episodes continue.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from demo.broker.local import LocalBroker

from . import episodes, report
from .nodes import single

#: The kind of episode for each action.
KINDS = {
    "kills": "kills",
    "zombies": "zombies",
    "broker restarts": "restarts",
    "times that partitions were added": "partitions",
    "nodes of a cluster lost": "leaders",
    "network cuts": "cuts",
    "full disks": "disk",
    "jumps of the clock": "clocks",
}


class Torture:
    """Runs episodes until every action was done as often as requested."""

    def __init__(self, folder: Path, wanted: dict[str, int]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.file, self.wanted = folder, folder / "episodes.jsonl", wanted
        self.episodes = report.read(self.file)
        self._lock = threading.Lock()
        self._planned = report.totals(self.episodes)
        self._impossible: dict[str, str] = {}

    def next_kind(self) -> str | None:
        """The kind of which the smallest share has been done."""
        with self._lock:
            left = {
                what: self._planned[what] / n
                for what, n in self.wanted.items()
                if self._planned[what] < n and what not in self._impossible
            }
            if not left:
                return None
            what = min(left, key=lambda name: left[name])
            kind = KINDS[what]
            if why := episodes.possible(kind):
                self._impossible[what] = why
                sys.stderr.write(f"{what}: not done, {why}\n")
            else:
                self._planned[what] += episodes.TIMES[kind]
        return self.next_kind() if why else kind

    def lane(self) -> None:
        """Run episodes one after the other."""
        broker: LocalBroker | None = None
        try:
            while kind := self.next_kind():
                if broker is None and kind in episodes.ON_A_BROKER:
                    broker = single()
                    broker.start()
                self.note(self.episode(kind, broker))
        finally:
            if broker is not None:
                broker.close()

    def episode(self, kind: str, broker: LocalBroker | None) -> dict[str, Any]:
        seed, began = random.SystemRandom().getrandbits(32), time.monotonic()
        told: dict[str, Any] = {"kind": kind, "seed": seed}
        try:
            told |= vars(episodes.run(kind, broker, seed))
            if late := told.pop("late"):
                (self.folder / f"{kind}-{seed}-late.log").write_text("\n".join(late))
        except Exception:
            told |= {"failed": kind, "counts": {}, "takeover_s": [], "batches": 0, "slots": 0}
            (self.folder / f"{kind}-{seed}.log").write_text(traceback.format_exc())
            if broker is not None:
                broker.start()
        return told | {"seconds": round(time.monotonic() - began, 1)}

    def note(self, told: dict[str, Any]) -> None:
        with self._lock:
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(told) + "\n")
            self.episodes.append(told)
            done = report.totals(self.episodes)
            if "failed" in told:
                self._planned[next(w for w, k in KINDS.items() if k == told["kind"])] -= (
                    episodes.TIMES[told["kind"]]
                )
                sys.stderr.write(f"FAILED: {told['kind']}, seed {told['seed']}\n")
            failed = sum("failed" in e for e in self.episodes)
            if failed > 20:
                self._impossible = dict.fromkeys(self.wanted, "too many failures")
            state = ", ".join(f"{what} {done[what]}/{n}" for what, n in self.wanted.items())
            sys.stderr.write(f"{told['kind']} in {told['seconds']:.0f} s; {state}\n")


def main() -> int:
    parser = argparse.ArgumentParser("torture", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--zombies", type=int, default=100)
    parser.add_argument("--restarts", type=int, default=100, help="of a broker")
    parser.add_argument("--others", type=int, default=30, help="of each of the other kinds")
    parser.add_argument("--lanes", type=int, default=3, help="episodes at a time")
    parser.add_argument("--out", type=Path, default=Path("torture"), help="what is kept")
    parser.add_argument("--report", action="store_true", help="write docs/torture.md")
    options = parser.parse_args()
    wanted = dict.fromkeys(KINDS, options.others)
    wanted |= {
        "kills": options.kills,
        "zombies": options.zombies,
        "broker restarts": options.restarts,
    }
    torture = Torture(options.out, {what: n for what, n in wanted.items() if n})
    lanes = [threading.Thread(target=torture.lane) for _ in range(options.lanes)]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    text = report.page(torture.episodes, torture.wanted)
    sys.stdout.write(text)
    if options.report:
        report.PAGE.write_text(text, encoding="utf-8")
    return int(any("failed" in episode for episode in torture.episodes))


if __name__ == "__main__":
    sys.exit(main())

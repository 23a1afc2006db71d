"""Feed the codecs with messages of a coverage-guided fuzzer.

    python -m tests.fuzz [--messages 1000000] [--only json avro ...]

The messages are divided among the formats, each of which has a process of its own: the fuzzer ends
the process that it runs in. The first message that breaks a rule is kept in `fuzz/`, and the exit
code is 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from . import TARGETS


def fuzz(name: str, messages: int, seed: int) -> None:
    """Run the fuzzer on one target; does not return."""
    atheris: Any = import_module("atheris")
    with atheris.instrument_imports(include=["consumers.model", "consumers.kafka.bounded"]):
        targets = import_module("tests.fuzz.targets")
    one = targets.target(name)
    with tempfile.TemporaryDirectory() as corpus:
        for i, message in enumerate(targets.seeds(name)):
            (Path(corpus) / f"seed{i}").write_bytes(message)
        kept = Path("fuzz") / name
        kept.mkdir(parents=True, exist_ok=True)
        options = [f"-runs={messages}", f"-max_len={targets.LARGEST + 50}", f"-seed={seed}"]
        options += [f"-artifact_prefix={kept}/", "-print_final_stats=1", "-verbosity=0"]
        atheris.Setup([sys.argv[0], *options, corpus], one, internal_libfuzzer=True)
        atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--only", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inside", choices=TARGETS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    each = -(-given.messages // len(given.only))
    if given.inside:
        fuzz(given.inside, given.messages, given.seed)
    failed = 0
    for name in given.only:
        command = [sys.executable, "-m", "tests.fuzz", "--inside", name]
        command += ["--messages", str(each), "--seed", str(given.seed)]
        ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        failed += ended.returncode != 0
        said = "no rule broken" if ended.returncode == 0 else ended.stderr[-2000:]
        sys.stdout.write(f"{name}: {each} messages, {said}\n")
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

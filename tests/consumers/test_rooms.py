"""The table of contents of `consumers` lists its rooms, in the order of their layers."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import consumers
from tests.support.processes import ROOT


def test_the_table_of_contents() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", consumers.__doc__ or "", re.MULTILINE)
    here = Path(consumers.__file__).parent
    assert set(listed) == {found.parent.name for found in here.glob("*/__init__.py")}
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    [layers] = [found["layers"] for found in contracts["contracts"] if "layers" in found]
    layered = [name for layer in layers for name in layer.split(" | ")]
    assert listed == [name for name in layered if name in listed]

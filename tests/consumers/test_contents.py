"""What docstrings list is what there is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import consumers
from consumers import crashpoints, errors
from tests.support.processes import ROOT

HERE = Path(consumers.__file__).parent
SOURCE = "\n".join(path.read_text() for path in HERE.rglob("*.py"))


def test_the_rooms_of_the_service_in_the_order_of_their_layers() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", consumers.__doc__ or "", re.MULTILINE)
    assert set(listed) == {found.parent.name for found in HERE.glob("*/__init__.py")}
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    [layers] = [found["layers"] for found in contracts["contracts"] if "layers" in found]
    layered = [name for layer in layers for name in layer.split(" | ")]
    assert listed == [name for name in layered if name in listed]


def test_the_points_at_which_tests_crash() -> None:
    table = re.findall(r"^\| (`.*?`) \|", crashpoints.__doc__ or "", re.MULTILINE)
    listed = re.findall(r"`(\w+)`", " ".join(table))
    assert sorted(listed) == sorted({*re.findall(r"crashpoints\.reach\(\"(\w+)\"", SOURCE)})


def test_the_errors() -> None:
    defined = {
        *re.findall(r"^class (\w+)\((?:\w*Error|Exception|Unavailable)\):", SOURCE, re.MULTILINE)
    }
    assert {"PlanOver", "SenderTime", "UnusableSchema"} < defined
    assert all(name in (errors.__doc__ or "") for name in defined)

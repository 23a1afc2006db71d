"""The recipe of an estimator: what the settings say about it, without loading it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

MethodName = Literal["adaptive", "paper"]


@dataclass(frozen=True)
class Recipe:
    """A method, and the parameters of its estimator that were set.

    With privacy per subject the parameter `unit` holds those of `PerSubject`, all of them: no part
    of the guarantee may come from a default.
    """

    method: MethodName
    parameters: Mapping[str, Any]

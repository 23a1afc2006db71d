"""Broken variants of production functions. Each must be caught, and stays here.

A mutant is the source of one function with a few characters changed. If the source changes, the
mutant no longer applies and says so: then rewrite it, do not drop it.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

PACKAGE = "stream_dppca."


@dataclass(frozen=True)
class Mutant:
    """`old` becomes `new` in the function; `audit` must notice on n batches of each kind."""

    name: str
    function: str  #: "module:function" or "module:Class.method"
    old: str
    new: str
    audit: str
    kinds: tuple[str, ...]
    n: int = 1200
    also: tuple[tuple[str, str, str], ...] = ()  #: more of (function, old, new)

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as stack:
            changes: dict[str, list[tuple[str, str]]] = {self.function: [(self.old, self.new)]}
            for function, old, new in self.also:
                changes.setdefault(function, []).append((old, new))
            for function, of_function in changes.items():
                stack.enter_context(_planted(function, of_function))
            stack.callback(_forget_cached)
            _forget_cached()
            yield


def _forget_cached() -> None:
    """Clear the caches of the package: mutants may have filled them."""
    for module in list(sys.modules.values()):
        if module.__name__.startswith(PACKAGE):
            for found in list(vars(module).values()):
                if hasattr(found, "cache_clear"):
                    found.cache_clear()


@contextmanager
def _planted(function: str, changes: list[tuple[str, str]]) -> Iterator[None]:
    module_name, path = function.split(":")
    module = importlib.import_module(PACKAGE + module_name)
    *owners, name = path.split(".")
    owner: Any = getattr(module, owners[0]) if owners else module
    original = inspect.getattr_static(owner, name)
    source = textwrap.dedent(inspect.getsource(original))
    for old, new in changes:
        assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {function}"
        source = source.replace(old, new)
    made: dict[str, Any] = {}
    exec(compile(source, function, "exec"), vars(module), made)  # noqa: S102
    # Other modules may have imported it by name.
    places = (
        [owner]
        if owners
        else [
            m
            for m in list(sys.modules.values())
            if m.__name__.startswith(PACKAGE) and getattr(m, name, None) is original
        ]
    )
    with ExitStack() as stack:
        for place in places:
            stack.enter_context(patch.object(place, name, made[name]))
        yield


PAPER = ("paper",)
METHOD = ("method",)
DRAW = "noise.sources:SeededNoise._rounded_gaussian"

MUTANTS = (
    # The paper's method
    Mutant("noise halved", DRAW, "* sd", "* sd / 2", "A1 mean canary", PAPER, 2400),
    Mutant("noise halved, law", DRAW, "* sd", "* sd / 2", "A5 law", PAPER, 200),
    Mutant("noise halved, public", DRAW, "* sd", "* sd / 2", "A7 public stream", PAPER),
    Mutant("noise x0.8", DRAW, "* sd", "* sd * 0.8", "A5 law", PAPER, 1000),
    Mutant(
        "no threshold, Algorithm 4",
        "paper.eigenvalue:private_histogram",
        "noisy > laplace_threshold(epsilon, delta)",
        "noisy > -9e9",
        "A3 lone bins",
        PAPER,
    ),
    Mutant(
        "no threshold, Algorithm 5",
        "paper.mean:_fullest_bins",
        "released = noisy >",
        "released = noisy > -9e9 * ",
        "A3 lone bins",
        PAPER,
    ),
    Mutant(
        "threshold without +1, Algorithm 4",
        "calibration:laplace_threshold",
        "return math.ceil(",
        "return -1 + math.ceil(",
        "A3 lone bins",
        PAPER,
    ),
    Mutant(
        "threshold without +1, Algorithm 5",
        "calibration:gaussian_threshold",
        "return 1.0 -",
        "return 0.0 -",
        "A3 lone bins",
        PAPER,
    ),
    Mutant(
        "1/B for 1/(B/2)",
        "paper.mean:private_mean",
        "ROUNDOFF * M) / n",
        "ROUNDOFF * M) / (2 * n)",
        "A1 mean canary",
        PAPER,
        2400,
    ),
    Mutant(
        "noise reused across batches",
        "noise.sources:SeededNoise.at_batch",
        "(self.seed, batch)",
        "(self.seed, 0)",
        "A2 difference",
        PAPER,
    ),
    Mutant(
        "one draw for all coordinates",
        DRAW,
        "standard_normal(values.size)",
        "standard_normal()",
        "A1 mean canary",
        PAPER,
    ),
    Mutant(
        "the second half used twice",
        "paper.dppca:halves",
        "first, second = slice(0, n1), slice(n1, None)",
        "first = second = slice(n1, None)",
        "A4 halves",
        PAPER,
    ),
    Mutant(
        "the first half used twice",
        "paper.dppca:halves",
        "first, second = slice(0, n1), slice(n1, None)",
        "first = second = slice(0, n1)",
        "A4 halves",
        PAPER,
    ),
    Mutant(
        "Lap(1/eps)",
        "paper.eigenvalue:private_histogram",
        "scale=2.0 / epsilon",
        "scale=1.0 / epsilon",
        "A6 laplace canary",
        PAPER,
        2000,
    ),
    # The method of `DPPCA`
    Mutant("noise halved", DRAW, "* sd", "* sd / 2", "mean canary", METHOD),
    Mutant("noise x0.8", DRAW, "* sd", "* sd * 0.8", "law", METHOD, 300),
    Mutant(
        "sensitivity rho for sqrt 2 rho",
        "method.statistics:moments_sensitivity",
        "math.sqrt(2) * radius",
        "radius",
        "mean canary",
        METHOD,
        4000,
    ),
    Mutant(
        "divided by valid records",
        "method.step:AdaptiveMethod.step",
        "exact, counts = rows.total(query), None",
        "exact, counts = rows.total(query) * (len(rows) / rows.present()), None",
        "mean canary",
        METHOD,
        2000,
    ),
    Mutant(
        "nulls dropped",
        "slots:SlotBuffer.put_rows",
        "start, n = 0, len(X)",
        "X = X[np.isfinite(X).all(axis=1)]; start, n = 0, len(X)",
        "slots",
        ("paper", "method"),
    ),
    Mutant(
        "column not normalised",
        "mechanisms.correlated:weights",
        "later] / length",
        "later]",
        "column length",
        METHOD,
    ),
    Mutant(
        "past enters too strongly",
        "mechanisms.correlated:weights",
        "later] / length",
        "later]",
        "mean canary",
        METHOD,
        4000,
    ),
    Mutant(
        "running sums that do not decay",
        "mechanisms.correlated:CorrelatedRelease._moved",
        "part *= decay",
        "pass",
        "column length",
        METHOD,
    ),
    Mutant(
        "the newest query twice in the running sums",
        "mechanisms.correlated:CorrelatedRelease._moved",
        "weight * newest",
        "2 * weight * newest",
        "column length",
        METHOD,
    ),
    Mutant(
        "the newest query twice in the running sums",
        "mechanisms.correlated:CorrelatedRelease._moved",
        "weight * newest",
        "2 * weight * newest",
        "mean canary",
        METHOD,
        6000,
    ),
    Mutant(
        "an endless column measured over one entry",
        "mechanisms.correlated:_basis",
        "1 / (1 - np.outer(lam, lam))",
        "np.ones((len(lam), len(lam)))",
        "column length",
        METHOD,
    ),
    Mutant(
        "noise reused across batches",
        "noise.sources:SeededNoise.at_batch",
        "(self.seed, batch)",
        "(self.seed, 0)",
        "law",
        METHOD,
        300,
    ),
    Mutant(
        "one draw for all coordinates",
        DRAW,
        "standard_normal(values.size)",
        "standard_normal()",
        "law",
        METHOD,
        300,
    ),
    Mutant(
        "nothing clipped",
        "method.statistics:clip_rows",
        "np.minimum(1.0, radius /",
        "np.minimum(1.0, 1e300 * radius /",
        "mean canary",
        METHOD,
        400,
    ),
    Mutant(
        "one term not clipped",
        "method.statistics:clip_rows",
        "weights = block.row_weights(factor)",
        "factor[-1] = 1.0; weights = block.row_weights(factor)",
        "mean canary",
        METHOD,
        400,
    ),
    Mutant(
        "copies share the secret history",
        "secrecy:Forgetful.__getstate__",
        "in self.PUBLIC",
        "in [*self.PUBLIC, *{'_sums', '_expected'} & set(vars(self))]",
        "copies",
        METHOD,
        also=(
            (
                "secrecy:Forgetful.__setstate__",
                "self.forget()",
                "self.forget()\n    vars(self).update(state)",
            ),
        ),
    ),
)

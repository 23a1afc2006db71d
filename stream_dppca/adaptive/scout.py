"""Chooses the form, by public numbers and, for a few hundred features, by the first release.

The noise of a second moment grows with the variance in all directions, but a second moment
separates a component from the next one as well as the records do. The noise of a gradient grows
with the root of that variance and with the number of components, and the part of the next component
in a gradient fades slowly if that component is close. With up to `MOMENT_FEATURES` features second
moments are better; with far more features, gradients are. In between, `ScoutMethod` releases one
second moment and decides by it.

The price is time and space: a second moment takes d times the arithmetic of a gradient, half a
second for ten thousand records of a thousand features, and d (d + 1)/2 numbers in the state. With
up to `SCOUT_FEATURES` features, a state still fits into a Kafka record.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..arrays import FloatArray
from ..method import Outcome
from ..noise import Noise
from ..participation import PerSubject, mu_of
from ..statistics import Rows
from .correlated import weights
from .eigen import leading
from .method import MOMENT_POWER, AdaptiveMethod, GradientMethod, MomentMethod
from .queries import unpack

__all__ = ["ScoutMethod", "adaptive_method", "edge_of_noise", "form_for", "scout_noise"]

#: Up to this many features the second moment is released.
MOMENT_FEATURES = 64
#: Above that, up to this many features, a first second moment decides.
SCOUT_FEATURES = 1023
#: With more components than this, second moments stay: noise in gradients grows as their number.
SCOUT_COMPONENTS = 2
#: The scouting batch puts more of its budget into its own release than others do: mostly it is the
#: only release of its kind, and where it is not, this costs 2 % of accuracy.
SCOUT_POWER = 1.0
#: Factor by which an eigenvalue must exceed the edge of the noise to be a component.
MARGIN = 1.1
#: The same for the eigenvalue after the components, if second moments are to remain. With
#: eigenvalues 1/i and 784 features (n = 1e5, B = 6250) it lies 1.25 times beyond the edge: second
#: moments end at .024 there, gradients at .020.
STAY = 1.35


class ScoutMethod:
    """Decides the form by the first release, which is a second moment.

    - If the (k+1)th eigenvalue stands well out of the noise, the form remains second moments.
    - If it does not, gradients follow: from the k components of the second moment if one of them
      stands out, and otherwise from a random start.

    A batch that is skipped decides nothing; the next one scouts. After the decision this object is
    the chosen form, and nothing of the other is kept.

    Privacy: every batch goes through the range and the mean of one of the two forms, whole, with
    the whole budget of a batch. The choice of the form and the start of gradients are functions of
    the first release: post-processing. When the form changes, the C of `correlated` ends and
    another begins. The column of the scouting batch is cut after one entry, so it is shorter than
    1; the scouting batch is in no release of the new C, and no later batch is in the old one. So
    each record still spends at most mu, over all releases that its batch enters.

    Parameters
    ----------
    W, epsilon, delta, rows, subjects
        As for `AdaptiveMethod`.
    """

    def __init__(
        self,
        *,
        W: FloatArray,
        epsilon: float,
        delta: float,
        rows: int,
        subjects: PerSubject | None = None,
    ) -> None:
        self._how: dict[str, Any] = {
            "epsilon": epsilon, "delta": delta, "rows": rows, "subjects": subjects
        }  # fmt: skip
        self._memory: float | str = "auto"
        self._become("moment" if W.shape[1] > SCOUT_COMPONENTS else "scout", W)

    def _become(self, name: str, W: FloatArray) -> None:
        if name not in ("scout", "moment", "gradient"):
            raise ValueError("not a form of this method")
        self.name = name
        self.form: AdaptiveMethod
        if name == "gradient":
            self.form = GradientMethod(W=W, **self._how)
        else:
            self.form = moment = MomentMethod(W=W, **self._how)
            moment.power = SCOUT_POWER if name == "scout" else MOMENT_POWER
        self.form.remember(self._memory)

    def remember(self, memory: float | str) -> None:
        """As for `AdaptiveMethod`, whatever form is chosen."""
        self._memory = memory
        self.form.remember(memory)

    @property
    def W(self) -> FloatArray:
        return self.form.W

    @W.setter
    def W(self, W: FloatArray) -> None:
        self.form.W = W

    def check_batch(self, rows: int) -> None:
        self.form.check_batch(rows)

    def step(self, rows: Rows, t: int, noise: Noise) -> Outcome:
        """Learn from one batch."""
        start = self.W
        outcome = self.form.step(rows, t, noise)
        if self.name == "scout" and isinstance(self.form, MomentMethod) and not outcome.skipped:
            self._decide(self.form, start)
        return outcome

    def _decide(self, scout: MomentMethod, start: FloatArray) -> None:
        """Choose the form for all later batches. `start` is W before the first release."""
        d, k = start.shape
        moment = unpack(scout.estimate.theta)
        values, _ = leading(moment, k + 1)
        radius = math.sqrt(d / 2 / scout.estimate.weight)
        bulk = max(float(np.trace(moment) - values[:k].sum()) / (d - k), 0.0)
        edge = edge_of_noise(bulk, radius, d=d, rows=scout.rows)
        if values[k] > edge_of_noise(bulk, radius, d=d, rows=scout.rows, margin=STAY):
            self.name, scout.power = "moment", MOMENT_POWER
            return
        shown = values[:k][values[:k] > edge]
        # Where nothing stands out, gradients start at random: they measure the level of the bulk
        # along their start, and W may hold enough of a component to spoil that. From W, G(.1) with
        # 512 features ends 2 % better, but with 200 features at epsilon .5 45 % worse.
        gradient = GradientMethod(W=scout.W if len(shown) else start, **self._how)
        if len(shown):
            # Noise lifts an eigenvalue l to l + radius^2/l and turns its vector by radius/l.
            strength = (shown + np.sqrt(shown**2 - 4 * radius**2)) / 2
            gain = math.sqrt(len(shown) / k * (1 - (radius / float(strength[-1])) ** 2))
            gradient.begin(
                values=np.r_[strength, np.full(k - len(shown), bulk)],
                bulk=bulk,
                gain=max(gain, gradient.gain),
                weight=2 * scout.estimate.weight,  # off the diagonal the variance is 1/2
            )
        gradient.W = scout.W  # the released components, wherever gradients start
        gradient.remember(self._memory)
        self.name, self.form = "gradient", gradient

    def state(self) -> dict[str, Any]:
        return {"form": self.name, **self.form.state()}

    def load(self, state: dict[str, Any]) -> None:
        self._become(state["form"], self.W)
        self.form.load(state)


def edge_of_noise(
    bulk: float, radius: float, *, d: int, rows: int, margin: float = MARGIN
) -> float:
    """Bound above which an eigenvalue is a component.

    Noise alone has eigenvalues within +-2 radius (Wigner), sampling alone spreads those of the bulk
    (Marchenko, Pastur); together they reach no further than the sum.
    """
    return bulk * (1 + math.sqrt(d / rows)) ** 2 + margin * 2 * radius


def scout_noise(
    *,
    d: int,
    epsilon: float,
    delta: float,
    rows: int,
    ratio: float,
    subjects: PerSubject | None = None,
) -> float:
    """The largest eigenvalue of the noise in a scouting release, in units of the top eigenvalue.

    Parameters
    ----------
    ratio
        The total variance, in the same units.
    """
    own = weights(SCOUT_POWER).own if subjects is None else 1.0
    return 2 * ratio * math.sqrt(d) / (rows * mu_of(epsilon, delta, subjects, rows) * own)


def form_for(
    *, d: int, epsilon: float, delta: float, rows: int, subjects: PerSubject | None = None
) -> str:
    """ "moment", "scout" or "gradient", from public numbers.

    Scouting is for batches that show a component over noise if every other direction has a tenth
    of its variance, or if the total variance is 1.5 ln(d) times its own: 1.4 times that of
    eigenvalues 1/i. Where no component shows, it costs the scouting batch.
    """
    if d <= MOMENT_FEATURES:
        return "moment"
    how: dict[str, Any] = {
        "epsilon": epsilon, "delta": delta, "rows": rows, "subjects": subjects
    }  # fmt: skip
    ratio = min(1 + (d - 1) / 10, 1.5 * math.log(d))
    seen = d <= SCOUT_FEATURES and scout_noise(d=d, ratio=ratio, **how) <= 1
    return "scout" if seen else "gradient"


def adaptive_method(
    *,
    W: FloatArray,
    epsilon: float,
    delta: float,
    rows: int,
    memory: float | str = "auto",
    subjects: PerSubject | None = None,
) -> AdaptiveMethod | ScoutMethod:
    """The form that suits the number of features and the noise, public numbers both."""
    method = _adaptive_method(W, epsilon, delta, rows, subjects)
    method.remember(memory)
    return method


def _adaptive_method(
    W: FloatArray, epsilon: float, delta: float, rows: int, subjects: PerSubject | None
) -> AdaptiveMethod | ScoutMethod:
    how: dict[str, Any] = {
        "epsilon": epsilon, "delta": delta, "rows": rows, "subjects": subjects
    }  # fmt: skip
    form = form_for(d=W.shape[0], **how)
    if form == "scout":
        return ScoutMethod(W=W, **how)
    return MomentMethod(W=W, **how) if form == "moment" else GradientMethod(W=W, **how)

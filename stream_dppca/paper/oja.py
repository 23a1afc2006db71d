"""The Oja step and its schedules.

    w'_t = w_{t-1} + eta_t g_t,    w_t = w'_t / ||w'_t||          (Algorithms 1, 2 and 3)

With k columns the division becomes an orthonormalisation. All of it is post-processing of
released gradients: nothing here touches a record.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from ..arrays import FloatArray
from ..basis import orthonormal
from ..checks import positive
from ..errors import ParameterError


class Schedule(Protocol):
    """A step size for every batch number t = 1, 2, ..."""

    def __call__(self, t: int) -> float: ...


@dataclass(frozen=True)
class InverseTime:
    """eta_t = c1 / (c2 + t), the form of the paper's remarks.

    `c1` has the unit of 1/eigenvalue: a good value is a few times 1 / (lambda_1 - lambda_2).

    Examples
    --------
    >>> InverseTime(c1=6.0, c2=2.0)(4)
    1.0
    """

    c1: float = 1.0
    c2: float = 0.0

    def __post_init__(self) -> None:
        positive("c1", self.c1)
        if not (math.isfinite(self.c2) and self.c2 >= 0):
            raise ParameterError("c2", "must be finite and not negative", self.c2)

    def __call__(self, t: int) -> float:
        return self.c1 / (self.c2 + t)


@dataclass(frozen=True)
class TheoremSchedule:
    """The step size of the proof of Theorem 5.1: Eq. (def_lr), M-tilde and V-tilde of Eq. (newV).

        eta_t = alpha / ((lambda1 - lambda2) (xi + t))
        xi = 20 max(M~ alpha / gap, (V~ + lambda1^2) alpha^2 / (gap^2 ln(1 + zeta/100)))

    The proof leaves C_2 and C_3 open; they are 1 here. `noise_sd` is the sd of the noise in one
    coordinate of the gradient (beta in the proof). The constants of the proof are large: with
    practical sizes this step is far too small; use `InverseTime`.
    """

    lambda1: float
    lambda2: float
    batch_size: int
    dimension: int
    n_batches: int
    M: float
    V: float
    noise_sd: float
    alpha: float = 1.0
    zeta: float = 0.01

    def __post_init__(self) -> None:
        for name in ("lambda1", "batch_size", "dimension", "n_batches", "M", "V", "alpha"):
            positive(name, getattr(self, name))
        if not 0 <= self.lambda2 < self.lambda1:
            raise ParameterError("lambda2", "must lie in [0, lambda1)", self.lambda2)
        if not 0 < self.zeta < 1:
            raise ParameterError("zeta", "must lie in (0, 1)", self.zeta)

    @property
    def xi(self) -> float:
        gap, beta, d = self.lambda1 - self.lambda2, self.noise_sd, self.dimension
        log_dt = math.log(d * self.n_batches / self.zeta)
        M_tilde = (
            self.M * self.lambda1 * log_dt / self.batch_size
            + self.lambda1 * math.sqrt(self.V * log_dt / self.batch_size)
            + beta * (math.sqrt(d) + math.sqrt(math.log(self.n_batches / self.zeta)))
        )
        V_tilde = self.V * self.lambda1**2 / self.batch_size + beta**2 * d
        return 20 * max(
            M_tilde * self.alpha / gap,
            (V_tilde + self.lambda1**2) * (self.alpha / gap) ** 2 / math.log1p(self.zeta / 100),
        )

    def __call__(self, t: int) -> float:
        return self.alpha / ((self.lambda1 - self.lambda2) * (self.xi + t))


def oja_step(W: FloatArray, gradient: FloatArray, eta: float) -> FloatArray:
    """One step: d x k in, d x k out, columns orthonormal, signs as before.

    Examples
    --------
    >>> import numpy as np
    >>> W = np.array([[1.0], [0.0]])
    >>> oja_step(W, np.array([[0.0], [1.0]]), eta=1.0).round(3).ravel().tolist()
    [0.707, 0.707]
    """
    return orthonormal(W + eta * gradient, like=W)

"""The Oja step and its schedule.

    w'_t = w_{t-1} + eta_t g_t,    w_t = w'_t / ||w'_t||          (Algorithms 1, 2 and 3)

With k columns the division becomes an orthonormalisation. All of it is post-processing of
released gradients: nothing here touches a record.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..arrays import FloatArray
from ..basis import orthonormal
from ..checks import positive
from ..errors import ParameterError


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

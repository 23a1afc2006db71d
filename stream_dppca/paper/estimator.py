"""`PaperDPPCA`: Algorithm 3 as a river transformer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

from numpy.typing import NDArray

from ..arrays import FloatArray
from ..batch import Reading
from ..checks import between, one_of, whole
from ..errors import ParameterError
from ..slots import SlotBuffer
from ..streaming import StreamingPCA
from .dppca import PaperMethod
from .oja import InverseTime

Centering = Literal["none", "pairs"]

#: A batch must be in the memory of one process.
LARGEST_BATCH = 2**22


@dataclass(kw_only=True, eq=False, repr=False)
class PaperDPPCA(StreamingPCA):
    """DP-PCA as published: Algorithms 3, 4 and 5 to the letter.

    It has the guarantee, the releases and the states of `DPPCA`, needs far larger batches, and
    learns neither centre nor scales.

    Parameters
    ----------
    features, epsilon, delta, batch_size, n_components, seed
        As for `DPPCA`.
    center
        `"none"`: records are taken as they are. `"pairs"`: differences of neighbouring records, so
        local variation only, which is a small part of the variance in telemetry.
    scales
        Public scales by which features are divided, by name or in order; None for none.
    K, a
        The tail of Assumption A.4.
    zeta
        The failure probability of a batch.
    C1
        The constant of Algorithm 4.
    step
        The step size: an `InverseTime`, by default with c1 = 1 and c2 = 0. Those of the proofs are
        far too small for practical sizes.

    Examples
    --------
    >>> import numpy as np
    >>> from stream_dppca import InverseTime
    >>> from stream_dppca.paper import PaperDPPCA
    >>> pca = PaperDPPCA(
    ...     features=("a", "b", "c"), epsilon=4.0, delta=1e-3, batch_size=50_000,
    ...     K=1.0, a=0.5, C1=8.0, step=InverseTime(4.0, 1.0), seed=1,
    ... )
    >>> rng = np.random.default_rng(7)
    >>> pca.learn_array(rng.normal(size=(200_000, 3)) * [1.0, 0.1, 0.1])
    >>> bool(abs(pca.components[0, 0]) > 0.95)
    True

    References
    ----------
    [^1]: Liu, Kong, Jain, Oh. DP-PCA: Statistically Optimal and Differentially Private PCA.
    NeurIPS 2022.
    """

    METHOD = "paper"
    NESTED: ClassVar = {"step": InverseTime}

    batch_size: int
    center: Centering = "none"
    scales: Sequence[float] | Mapping[Any, float] | None = None
    K: float = 4.0
    a: float = 1.0
    zeta: float = 0.01
    C1: float = 4.0
    step: InverseTime | None = None
    _slots: SlotBuffer = field(init=False)

    def learn_array(self, X: NDArray[Any]) -> None:
        """Take the rows of an n x d numpy array, columns in the order of `features`.

        A row with a cell that is not a number is a null, whatever the type of the array.
        """
        for batch in self._slots.put_rows(self._checked_rows(X)):
            self._run(batch)

    def _make_slots(self) -> SlotBuffer:
        reading = Reading(scales=None if self._scales is None else tuple(self._scales.tolist()))
        return SlotBuffer(self.features, self.batch_size, reading)

    def _make_method(self, W: FloatArray) -> PaperMethod:
        names = ("epsilon", "delta", "K", "a", "zeta", "C1")
        return PaperMethod(
            W=W,
            schedule=self.step or InverseTime(),
            pairs=self.center == "pairs",
            **{name: getattr(self, name) for name in names},
        )

    def _check_parameters(self) -> None:
        super()._check_parameters()
        whole("batch_size", self.batch_size, 2, LARGEST_BATCH)
        one_of("center", self.center, get_args(Centering))
        if self.center == "pairs" and self.batch_size % 2:
            raise ParameterError("batch_size", 'must be even with center="pairs"', self.batch_size)
        between("K", self.K, 1e-3, 1e3)
        between("a", self.a, 0.0, 10.0)
        between("zeta", self.zeta, 1e-12, 0.5)
        between("C1", self.C1, 0.1, 1e3)
        if not isinstance(self.step, InverseTime | None):
            raise ParameterError("step", "must be an InverseTime", self.step)

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        names = ("ordinal_date", "gallup", "ipsos", "morning_consult", "rasmussen", "you_gov")
        yield {"features": names, "epsilon": 20.0, "delta": 1e-3, "batch_size": 400}

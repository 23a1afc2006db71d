"""`DPPCA`, the public class: its parameters, and the method that they choose."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

from numpy.typing import NDArray

from .arrays import FloatArray
from .batch import Reading
from .checks import one_of, real, whole
from .errors import DPPCAError, ParameterError
from .frames import cells_of
from .method import AdaptiveMethod, Parameters, check_features
from .participation import PerSubject
from .projector import Projector
from .release import Release
from .slots import SlotBuffer
from .statistics import Rows
from .streaming import StreamingPCA
from .subjects import SubjectTable

Centering = Literal["mean", "none", "own"]
Missing = Literal["null", "center"]

#: Bounds on rounding are proven for batches up to this size.
LARGEST_BATCH = 2**26
#: Most records of a round, which must be in the memory of one process.
LARGEST_ROUND = 2**22


@dataclass(kw_only=True, eq=False, repr=False)
class DPPCA(StreamingPCA):
    """Differentially private PCA on a stream.

    Records are gathered into batches of `batch_size` slots. From every batch the moments are
    estimated under differential privacy, the components take a step, and `last_release` holds the
    result. The first step takes `first_batches` batches at once, and also learns the centre and the
    scale of each feature. Between releases nothing that can be seen depends on the records. Cost:
    the memory of one step, and O(batch_size x d x d) time per batch, for up to 2048 features d
    (docs/speed.md). `stream_dppca.paper.PaperDPPCA` takes more: its time is O(batch_size x d).

    **Guarantee.** Everything this object ever shows (components, releases, state, transformations
    of other data) is (epsilon, delta)-differentially private with respect to replacing one record
    of the stream, however long the stream is: each record is used in exactly one batch, so nothing
    adds up. Somebody who sends many records is protected for each of them, not for all of them
    together; `PerSubject` is for that (docs/subjects.md).

    **Subjects.** With `unit=PerSubject(...)` records are gathered by their subject (a device, a
    user), and `close_round` releases the result of a round: call it by a clock, never because of
    the records that came. The guarantee is then (epsilon, delta) with respect to replacing
    everything that one subject sends within `period` consecutive rounds; `privacy.epsilon_over`
    gives the epsilon over longer times.

    **Limits.** Earlier steps that look at the data break the guarantee. river's `StandardScaler`
    does: it scales each record by statistics of those before it, so that one record is used in
    every later batch. Numbers that are known without looking at the data, such as units, break
    nothing (docs/river.md). With `compose.Grouper` the key must be public, because it decides which
    records share a batch: a key that a record could change would move it, and all after it, to
    other batches. So would a filter before it that drops records by their content. A
    `clone` does not know what its original released: feeding the same records to both spends twice;
    a copy, a pickle and the child of a fork do not keep the partial batch. The time that a batch
    takes is not hidden, though a null takes no longer than a record. One estimator belongs to one
    thread.

    Parameters
    ----------
    features
        The features, a public tuple of names fixed beforehand. Other keys are ignored; `disk.free`
        may also be the member `free` of a dict `disk`. A record with one of these missing, not a
        number (`stream_dppca.values` has the rule) or not finite is a *null*: it keeps its slot and
        contributes nothing.
    epsilon, delta
        The guarantee, for each record and the whole stream.
    batch_size
        Slots per batch. Larger batches carry less noise but come later; see `plan`. With subjects
        it is left out: rounds have `places`.
    n_components
        Number of components.
    center
        `"mean"`: the mean is learned. `"none"`: the data is known to be centred, which means less
        noise. `"own"`, for subjects: deviations from the mean of the subject's own records of the
        round.
    seed
        For tests and simulations only: the noise can be drawn again, so **nothing is private**, and
        every release says so.
    scales
        `"learn"`: features are divided by standard deviations that are learned. Numbers, by name or
        in order: their standard deviations, which are known; this makes the result more accurate.
        None: features are in one unit, and components are those of raw records.
    memory
        `"auto"`: keep everything until the stream changes. `"all"`: never forget. A number: forget
        exponentially, with a memory of that many batches.
    missing
        `"null"`: a record in which a feature is missing is a null. `"center"`: the centre takes the
        place of a missing value.
    unit
        Unit of privacy: `"record"`, or a `PerSubject`.
    batches
        1 if there is just one batch: its noise need not allow for later ones.
    limits
        If true, releases tell which scores few records exceed (`Release.limits`), for 4 % of the
        budget. If false, components have all of it.

    Attributes
    ----------
    n_batches
        Batches released, skipped ones included.
    last_release
        The newest release, None before the first.
    privacy
        The privacy guarantee, as it was when the estimator was made.

    Examples
    --------
    >>> import numpy as np
    >>> from stream_dppca import DPPCA
    >>> rng = np.random.default_rng(7)
    >>> pca = DPPCA(features=("cpu", "memory", "disk"), epsilon=1.0, delta=1e-6, batch_size=2000)
    >>> for _ in range(12_000):
    ...     load, *noise = rng.normal(size=4).tolist()
    ...     pca.learn_one({
    ...         "cpu": 50 + 10 * load + noise[0],
    ...         "memory": 8e9 + 1e9 * load + 1e8 * noise[1],
    ...         "disk": 3 * noise[2],
    ...     })
    >>> pca.n_batches
    6
    >>> bool(abs(pca.components[0] @ [0.5**0.5, 0.5**0.5, 0.0]) > 0.98)
    True
    >>> pca.transform_one({"cpu": 60.0, "memory": 9e9, "disk": 0.0})
    {0: ...}

    References
    ----------
    [^1]: Liu, Kong, Jain, Oh. DP-PCA: Statistically Optimal and Differentially Private PCA.
    NeurIPS 2022. `stream_dppca.paper.PaperDPPCA` is its algorithm to the letter.
    """

    METHOD = "adaptive"
    SCALES = ("learn",)
    NESTED: ClassVar = {"unit": PerSubject}

    batch_size: int | None = None
    center: Centering = "mean"
    scales: Sequence[float] | Mapping[Any, float] | Literal["learn"] | None = "learn"
    memory: float | Literal["auto", "all"] = "auto"
    missing: Missing = "null"
    unit: Literal["record"] | PerSubject = "record"
    batches: int | None = None
    limits: bool = True
    _method: AdaptiveMethod = field(init=False)

    # Learning

    def learn_array(self, X: NDArray[Any], subjects: Iterable[Any] | None = None) -> None:
        """Take the rows of an n x d numpy array, columns in the order of `features`.

        A row with a cell that is not a number is a null, whatever the type of the array.

        Parameters
        ----------
        subjects
            With privacy per subject: an id per row.
        """
        rows = self._checked_rows(X)
        if isinstance(self._slots, SubjectTable):
            self._slots.put_rows(rows, _one_each(subjects, len(rows)))
            return
        if subjects is not None:
            rule = "must be left out unless `unit` is a PerSubject"
            raise ParameterError("subjects", rule, type(subjects).__name__)
        for batch in self._slots.put_rows(rows):
            self._run(batch)

    def close_round(self) -> Release:
        """End the round: release the result of its subjects, and begin the next one.

        This is for privacy per subject only. It must be called by a clock: the moment is public, so
        it must not depend on the records. A round without any record is released like any other.
        """
        if not isinstance(self._slots, SubjectTable):
            raise DPPCAError("close_round() is for PerSubject: a batch of records ends itself")
        self._slots.check_open()
        self._refuse_if_interrupted()
        return self._run(self._slots.close())

    def learn_rows(self, rows: Rows) -> None:
        """Take one whole batch, whose rows may be in other processes: only sums over them are used.

        The batches of the first step must stay readable until its last one is given, and single
        records are refused until then.

        If a question about the rows fails, the batch counts as interrupted: restore the last state.

        Parameters
        ----------
        rows
            As many as a batch has, made of records by the rule `reading`; see
            `stream_dppca.engine.EngineRows`.
        """
        if isinstance(self._slots, SubjectTable):
            raise DPPCAError("learn_rows() is for batches of records, not for PerSubject")
        if len(rows) != self.capacity:
            raise ParameterError("rows", f"must have {self.capacity} places", len(rows))
        if self._slots.fill:
            rule = f"must not be given while {self._slots.fill} records wait for a full batch"
            raise ParameterError("rows", rule, type(rows).__name__)
        step = self._slots.put_batch(rows)
        if step is not None:
            self._run(step)

    @property
    def reading(self) -> Reading:
        """The public rule by which records are read."""
        return self._slots.reading

    # Results

    def projector(self, n_components: int | None = None) -> Projector:
        """Return what scores raw records: the model as it is now, without what it learns with.

        Parameters
        ----------
        n_components
            Another number of components than that of the model. They follow from second moments
            that have been released, so nothing is spent.
        """
        found: Projector | None
        if n_components is None:
            found = self._projector() if self._learned else None
        else:
            whole("n_components", n_components, 1, len(self.features))
            found = self._method.projector(self._slots.features, n_components)
        if found is None:
            since = " since the stream has changed" if self._learned else ""
            raise DPPCAError(f"there is no projector yet: nothing has been learned{since}")
        return found

    def _found(self) -> Projector | None:
        return self._method.projector(self._slots.features) if self._learned else None

    # Construction

    def _make_slots(self) -> SlotBuffer | SubjectTable:
        reading = Reading(partial=self.missing == "center")
        if isinstance(self.unit, PerSubject):
            return SubjectTable(self.features, self.unit, reading, own=self.center == "own")
        return SlotBuffer(self.features, self.batch_size or 0, reading)

    def _make_method(self, W: FloatArray) -> AdaptiveMethod:
        return AdaptiveMethod(
            Parameters(
                W=W,
                epsilon=self.epsilon,
                delta=self.delta,
                units=self.capacity,
                known_center=self.center != "mean",
                scales=self._scales,
                one_unit=self.scales is None,
                memory=self.memory,
                subjects=self.unit if isinstance(self.unit, PerSubject) else None,
                batches=self.batches,
                limits=self.limits,
            )
        )

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_features("features", len(self.features))
        one_of("center", self.center, get_args(Centering))
        one_of("missing", self.missing, get_args(Missing))
        self._check_memory()
        if isinstance(self.unit, PerSubject):
            self._check_subjects(self.unit)
        else:
            self._check_records()
        if self.missing == "center" and self.center == "own":
            rule = 'must be "null" with center="own": a subject has its own centre'
            raise ParameterError("missing", rule, self.missing)
        if not isinstance(self.limits, bool):
            raise ParameterError("limits", "must be True or False", self.limits)
        if self.batches not in (None, 1) or isinstance(self.batches, bool):
            raise ParameterError("batches", "must be 1, or None if it is not known", self.batches)

    def _check_records(self) -> None:
        if self.unit != "record":
            raise ParameterError("unit", 'must be "record" or a PerSubject', self.unit)
        if self.center == "own":
            rule = 'must not be "own" unless `unit` is a PerSubject'
            raise ParameterError("center", rule, self.center)
        if self.batch_size is None:
            rule = "must be given: the records of a batch; or `unit`, a PerSubject with its places"
            raise ParameterError("batch_size", rule, None)
        whole("batch_size", self.batch_size, 2, LARGEST_BATCH)

    def _check_subjects(self, unit: PerSubject) -> None:
        if self.batch_size is not None:
            rule = "must be left out with a PerSubject: its `places` are the size of a round"
            raise ParameterError("batch_size", rule, self.batch_size)
        if unit.subject in self.features:
            rule = "must name the id of a record, which is not a feature"
            raise ParameterError("subject", rule, unit.subject)
        if self.center == "own" and unit.records < 2:
            raise ParameterError("records", 'must be at least 2 with center="own"', unit.records)
        whole("places", unit.places, 2)
        if unit.places * unit.records > LARGEST_ROUND:
            rule = f"must be at most {LARGEST_ROUND} / records"
            raise ParameterError("places", rule, unit.places)

    def _check_memory(self) -> None:
        memory: Any = self.memory
        known = isinstance(memory, str) and memory in ("auto", "all")
        if not (known or (real(memory) and 1 < memory <= 1e6)):  # false for NaN
            rule = 'must be "auto", "all" or a number of batches above 1, up to 1e6'
            raise ParameterError("memory", rule, memory)

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        names = ("ordinal_date", "gallup", "ipsos", "morning_consult", "rasmussen", "you_gov")
        yield {"features": names, "epsilon": 20.0, "delta": 1e-3, "batch_size": 40}


def _one_each(subjects: Iterable[Any] | None, rows: int) -> Sequence[Any] | NDArray[Any]:
    """The ids of the subjects, one per row."""
    if subjects is None or isinstance(subjects, str | bytes):
        raise ParameterError("subjects", "must be given, one id per row", subjects)
    ids = cells_of(subjects)
    if len(ids) != rows:
        raise ParameterError("subjects", f"must have one id for each of the {rows} rows", len(ids))
    return ids

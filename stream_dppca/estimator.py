"""`DPPCA`, the public class: the buffer, the order of steps, the state."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from river import base

from . import state as saved
from .adaptive import adaptive_method
from .arrays import FloatArray
from .batch import Reading
from .calibration import check_budget
from .checks import between, loose_budget, one_of, whole
from .errors import (
    DPPCAError,
    LooseBudgetWarning,
    NothingLearnedWarning,
    ParameterError,
    StateError,
)
from .frames import cells_of, frame_like, require_frame
from .learned import MOST_FEATURES, WARMING_UP, WARMING_UP_ANEW, LearnedMethod, WideMethod
from .method import Method, Outcome
from .noise import Noise, OpenDPNoise, Sampler, make_noise
from .oja import InverseTime, Schedule, column_signs, orthonormal
from .paper import PaperMethod
from .participation import Subjects
from .projector import Projector
from .release import PrivacyStatement, Release, Status, SubjectStatement
from .slots import SlotBuffer
from .statistics import Rows
from .subjects import MOST_RECORDS, SubjectTable
from .values import number, numbers

__all__ = ["DPPCA"]

MethodName = Literal["adaptive", "paper"]
Centering = Literal["mean", "none", "pairs", "own"]
Unit = Literal["record", "subject"]
Missing = Literal["null", "center"]

#: Bounds on rounding are proven for batches up to this size.
LARGEST_BATCH = 2**26
#: The same for batches that must be in the memory of one process.
LARGEST_ALONE = 2**22


class DPPCA(base.MiniBatchTransformer):
    """Differentially private PCA on a stream.

    Records are gathered into batches of `batch_size` slots. The first batches are a warm-up, in
    which the centre and the scale of each feature are learned, and nothing else. From every later
    batch the moments are estimated under differential privacy, the components take a step, and
    `last_release` holds the result. Between releases nothing that can be seen depends on the
    records. Cost: one batch of memory, and O(batch_size x d x k) time per batch while gradients are
    released, O(batch_size x d x d) while second moments are (docs/speed.md).

    **Guarantee.** Everything this object ever shows (components, releases, state, transformations
    of other data) is (epsilon, delta)-differentially private with respect to replacing one record
    of the stream, however long the stream is: each record is used in exactly one batch, so nothing
    adds up. Somebody who sends many records is protected for each of them, not for all of them
    together; `unit="subject"` is for that (docs/subjects.md).

    **Subjects.** With `unit="subject"` records are gathered by their `subject` (a device, a user),
    and `close_round` releases the result of a round: call it by a clock, never because of the
    records that came. The guarantee is then (epsilon, delta) with respect to replacing everything
    that one subject sends within `period` consecutive rounds; `privacy.epsilon_over` gives the
    epsilon over longer times.

    **Limits.** Earlier steps that look at the data break the guarantee. river's `StandardScaler`
    does: it scales each record by statistics of those before it, so that one record is used in
    every later batch. Use `PublicScaler`, or `center="pairs"`. With `compose.Grouper` the key must
    be public, because it decides which records share a batch: a key that a record could change
    would move it, and all after it, to other batches. A `clone` does not know what its original
    released: feeding the same records to both spends twice; a copy, a pickle and the child of a
    fork do not keep the partial batch. The time that a batch takes is not hidden, though a null
    takes no longer than a record. One estimator belongs to one thread.

    Parameters
    ----------
    features
        The features, a public tuple of names fixed beforehand. Other keys are ignored. A record
        with one of these missing, not a number (`stream_dppca.values` has the rule) or not finite
        is a *null*: it keeps its slot and contributes nothing.
    epsilon, delta
        The guarantee, for each record and the whole stream.
    batch_size
        Slots per batch. Larger batches carry less noise but come later; see `plan`.
    n_components
        Number of components.
    method
        `"adaptive"`, or `"paper"` for Algorithms 3, 4 and 5 to the letter, which need very
        large batches.
    center
        `"mean"`: the mean is learned. `"none"`: the data is known to be centred, which means less
        noise. `"pairs"`: differences of neighbouring records, so local variation only, which is a
        small part of the variance in telemetry. `"own"`, for subjects: deviations from the mean of
        the subject's own records of the round.
    seed
        For tests and simulations only: the noise can be drawn again, so **nothing is private**, and
        every release says so.
    sampler
        `"exact"`, or `"opendp"` for the samplers of OpenDP: the same guarantee from an independent
        implementation, about 200 times slower, with `pip install opendp`.
    scales
        `"learn"`: features are divided by standard deviations that are learned. Numbers, by name or
        in order: public scales by which features are divided. None: features are in one unit.
    max_norm
        Public cap on the norm of a scaled record; a record beyond it is a null.
    memory
        `"auto"`: keep everything until the stream changes. `"all"`: never forget. A number: forget
        exponentially, with a memory of that many batches.
    missing
        `"null"`: a record in which a feature is missing is a null. `"center"`: the learned centre
        takes the place of a missing value.
    unit
        Unit of privacy: `"record"` or `"subject"`. With subjects, `batch_size` is the number of
        places in a round, about the number of subjects that are expected; later ones are left out.
    subject
        The key or column that holds the subject's id (`stream_dppca.subjects.ids` has the rule).
    period, horizon
        Numbers of rounds. (epsilon, delta) holds for `period` consecutive rounds. After `horizon`
        rounds learning is refused; None to continue for ever.
    records
        Records of one subject that are used in a round, the first that come.
    K, a, zeta, C1, step
        Parameters of `method="paper"`, which takes records as they are and learns neither centre
        nor scales: the tail of Assumption A.4, the failure probability of a batch, the constant of
        Algorithm 4, and the step size (`InverseTime` or `TheoremSchedule`).

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
    NeurIPS 2022.
    """

    def __init__(
        self,
        *,
        features: Sequence[Hashable],
        epsilon: float,
        delta: float,
        batch_size: int,
        n_components: int = 1,
        method: MethodName = "adaptive",
        center: Centering = "mean",
        seed: int | None = None,
        scales: Sequence[float] | Mapping[Any, float] | Literal["learn"] | None = "learn",
        max_norm: float = 1e18,
        K: float = 4.0,
        a: float = 1.0,
        zeta: float = 0.01,
        C1: float = 4.0,
        step: Schedule | None = None,
        sampler: Sampler = "exact",
        memory: float | Literal["auto", "all"] = "auto",
        missing: Missing = "null",
        unit: Unit = "record",
        subject: Hashable = None,
        period: int = 1,
        horizon: int | None = None,
        records: int = 4,
    ) -> None:
        self.features = features
        self.epsilon = epsilon
        self.delta = delta
        self.batch_size = batch_size
        self.n_components = n_components
        self.method = method
        self.center = center
        self.seed = seed
        self.scales = scales
        self.max_norm = max_norm
        self.K = K
        self.a = a
        self.zeta = zeta
        self.C1 = C1
        self.step = step
        self.sampler = sampler
        self.memory = memory
        self.missing = missing
        self.unit = unit
        self.subject = subject
        self.period = period
        self.horizon = horizon
        self.records = records

        self._check_parameters()
        for problem in loose_budget(epsilon, delta, batch_size):
            warnings.warn(problem, LooseBudgetWarning, stacklevel=2)
        self._noise: Noise = make_noise(seed, sampler)
        self._slots: SlotBuffer | SubjectTable = self._make_slots()
        self._method = self._make_method()
        slots = self._slots.reading.records_per_unit
        self._method.check_batch(batch_size // slots, slots)
        self._privacy = self._statement()
        self._n_batches = 0
        self._release: Release | partial[Release] | None = None
        self._learned = False  # from at least one batch
        self._interrupted = False  # in the middle of a batch
        self._warned = False  # that there is nothing to transform with
        self._warned_of_batch = False  # that nothing was learned from one

    def __copy__(self) -> DPPCA:
        """Return a deep copy: a shallow one would share the partial batch with its original."""
        return copy.deepcopy(self)

    # Learning

    def learn_one(self, x: dict[Any, Any]) -> None:
        """Take one record, a dict. A bad record, or anything but a dict, is a null in its slot.

        Nothing raises: a record without a slot would shift all records after it.
        """
        batch = self._slots.put_dict(x)
        if batch is not None:
            self._run(batch)

    def learn_many(self, X: Any) -> None:
        """Take the rows of a frame (pandas, polars, pyarrow), in order.

        Missing columns make nulls; nothing in the frame raises.
        """
        require_frame(X)
        if isinstance(self._slots, SubjectTable):
            self._slots.put_frame(X)
            return
        for batch in self._slots.put_frame(X):
            self._run(batch)

    def learn_array(self, X: NDArray[Any], subjects: Iterable[Any] | None = None) -> None:
        """Take the rows of an n x d numpy array, columns in the order of `features`.

        A row with a cell that is not a number is a null, whatever the type of the array.

        Parameters
        ----------
        subjects
            With `unit="subject"`: an id per row.
        """
        if not isinstance(X, np.ndarray):
            raise ParameterError("X", "must be a numpy array", type(X).__name__)
        rows = X if X.dtype == np.float32 else numbers(X)
        if rows.ndim != 2 or rows.shape[1] != len(self._slots.features):
            rule = f"must have shape (n, {len(self._slots.features)})"
            raise ParameterError("X", rule, rows.shape)
        if isinstance(self._slots, SubjectTable):
            self._slots.put_rows(rows, _one_each(subjects, len(rows)))
            return
        if subjects is not None:
            rule = 'must be left out unless unit="subject"'
            raise ParameterError("subjects", rule, type(subjects).__name__)
        for batch in self._slots.put_rows(rows):
            self._run(batch)

    def close_round(self) -> Release:
        """End the round: release the result of its subjects, and begin the next one.

        This is for `unit="subject"` only. It must be called by a clock: the moment is public, so it
        must not depend on the records. A round without any record is released like any other.
        """
        if not isinstance(self._slots, SubjectTable):
            raise DPPCAError('close_round() is for unit="subject": a batch of records ends itself')
        self._slots.check_open()
        self._refuse_if_interrupted()
        self._run(self._slots.close())
        self._slots.open = self.horizon is None or self._n_batches < self.horizon
        release = self.last_release
        if release is None:
            raise RuntimeError("a closed round has no release")
        return release

    def learn_rows(self, rows: Rows) -> None:
        """Take one whole batch, whose rows may be in other processes: only sums over them are used.

        This does not work with `method="paper"`, whose statistics are not sums. If a question about
        the rows fails, the batch counts as interrupted: restore the last state.

        Parameters
        ----------
        rows
            As many units as a batch has, made of records by the rule `reading`; see
            `stream_dppca.engine.EngineRows`.
        """
        if isinstance(self._slots, SubjectTable):
            raise DPPCAError('learn_rows() is for unit="record"')
        units = self.batch_size // self.reading.records_per_unit
        if len(rows) != units:
            raise ParameterError("rows", f"must have {units} places", len(rows))
        if self._slots.fill:
            rule = f"must not be given while {self._slots.fill} records wait for a full batch"
            raise ParameterError("rows", rule, type(rows).__name__)
        if self.method == "paper":
            rule = 'must be "adaptive" to learn from rows in other processes'
            raise ParameterError("method", rule, self.method)
        self._run(rows)

    @property
    def reading(self) -> Reading:
        """The public rule by which records become units."""
        return self._slots.reading

    def _run(self, rows: Rows) -> None:
        """Learn from a full batch, then show the result."""
        self._refuse_if_interrupted()
        # From here on the records count as used, whatever happens.
        self._n_batches = t = self._n_batches + 1
        self._interrupted = True
        with np.errstate(all="ignore"):  # a warning would say something about the records
            outcome = self._method.step(rows, t, self._noise.at_batch(t))
            if not self._learned and outcome.skipped is None:
                # From here on, signs follow from release to release.
                self._method.W = self._method.W * column_signs(self._method.W)
                self._learned = True
        self._interrupted = False
        self._release = partial(
            _release_of,
            outcome,
            self.components,
            self._status(outcome),
            self._projector(),
            self._slots.features,
            t,
            t * self.batch_size if self.unit == "record" else None,
            self.privacy,
        )
        if outcome.skipped not in (None, WARMING_UP):
            self._warn_of_batch(t, str(outcome.skipped))

    def _warn_of_batch(self, batch: int, reason: str) -> None:
        """Warn once that nothing was learned. The reason is part of the release."""
        if not self._warned_of_batch:
            self._warned_of_batch = True
            warnings.warn(
                f"DPPCA has learned nothing from batch {batch}: {reason}. "
                "If this continues, check the feature names",
                NothingLearnedWarning,
                stacklevel=4,
            )

    def _status(self, outcome: Outcome) -> Status:
        if outcome.skipped in (WARMING_UP, WARMING_UP_ANEW):
            return "warming_up"
        if not self._learned:
            return "nothing_learned"
        return "learned" if outcome.skipped is None else "skipped"

    def _refuse_if_interrupted(self) -> None:
        """Raise if a batch ended half-way (Ctrl-C, no memory): no state knows what it has spent."""
        if self._interrupted:
            used = "rounds" if self.unit == "subject" else "records"
            number = self._n_batches if self.unit == "subject" else self.n_seen
            raise DPPCAError(
                f"batch {self._n_batches} was interrupted, so this model cannot continue. Restore "
                f"the last state that was saved, and do not use the first {number} {used} of "
                "this stream again."
            )

    # Results

    @property
    def components(self) -> FloatArray:
        """k x d, orthonormal rows; no rows before anything has been learned."""
        d = len(self._slots.features)
        return np.ascontiguousarray(self._method.W.T) if self._learned else np.zeros((0, d))

    def raw_directions(self) -> FloatArray:
        """k x d: changes of raw features along each component; no rows before anything is known."""
        found = self._projector()
        return np.zeros((0, len(self.features))) if found is None else found.raw_directions()

    def raw_weights(self) -> FloatArray:
        """k x d: weights of raw features in each score, as long as nothing is clamped."""
        found = self._projector()
        return np.zeros((0, len(self.features))) if found is None else found.raw_weights()

    @property
    def n_batches(self) -> int:
        """Batches released, skipped ones included."""
        return self._n_batches

    @property
    def warm_up_left(self) -> int:
        """Batches that the warm-up still needs, as far as is known; 0 without one or after it."""
        method = self._method
        if not isinstance(method, LearnedMethod | WideMethod) or not method.warming_up:
            return 0
        return method.warm_up.batches_left

    @property
    def n_seen(self) -> int:
        """Slots taken, the partial batch included. With subjects it is not public, and absent."""
        if isinstance(self._slots, SubjectTable):
            raise AttributeError("n_seen is not public with unit='subject'")
        return self._n_batches * self.batch_size + self._slots.fill

    @property
    def last_release(self) -> Release | None:
        """The newest release, None before the first."""
        if isinstance(self._release, partial):  # made when it is first used
            self._release = self._release()
        return self._release

    @property
    def privacy(self) -> PrivacyStatement | SubjectStatement:
        """The privacy guarantee, as it was when the estimator was made."""
        return self._privacy

    def transform_one(self, x: dict[Any, Any]) -> dict[Hashable, Any]:
        """Scores along the components, {0: ..., 1: ...}; {} before anything has been learned.

        A feature that is missing or bad counts as its mean.
        """
        row = np.array([[number(x.get(name)) for name in self._slots.features]])
        return dict(enumerate(self.transform_array(row)[0].tolist()))

    def transform_many(self, X: Any) -> Any:
        """Scores of the rows of a frame, in a frame of its kind with its index.

        The columns are 0, 1, ... in pandas and "0", "1", ... elsewhere; there are none before
        anything has been learned.
        """
        require_frame(X)
        scores = self.transform_array(self._slots.frame_to_rows(X))
        return frame_like(X, scores, range(scores.shape[1]))

    def transform_array(self, X: NDArray[Any]) -> FloatArray:
        """Scores of the rows of an n x d array: n x k, n x 0 before anything has been learned."""
        found = self._projector()
        if found is None:
            self._warn()
            return np.zeros((len(X), 0))
        return found.transform_array(self._capped(X))

    def inverse_transform(self, scores: NDArray[Any]) -> FloatArray:
        """Raw records, n x d, that have these scores and lie in the private subspace."""
        found = self._projector()
        if found is None:
            raise ParameterError("scores", "need a model that has learned something", None)
        return found.inverse_transform(scores)

    def reconstruction_error(self, X: NDArray[Any]) -> FloatArray:
        """Distance of each row to the private subspace, in standard deviations of the features.

        With known scales, it is in their units. It is NaN before anything has been learned.
        """
        found = self._projector()
        if found is None:
            self._warn()
            return np.full(len(X), np.nan)
        return found.reconstruction_error(self._capped(X))

    def score_one(self, x: dict[Any, Any]) -> float:
        """Anomaly score: `reconstruction_error` of one record, 0 before anything is known.

        `SubspaceDistance` offers it through river's `AnomalyDetector`.
        """
        if not self._learned:
            self._warn()
            return 0.0
        row = np.array([[number(x.get(name)) for name in self._slots.features]])
        return float(self.reconstruction_error(row)[0])

    def _capped(self, X: NDArray[Any]) -> FloatArray:
        """Rows in which values beyond the public cap are missing, as in learning."""
        with np.errstate(all="ignore"):
            rows = numbers(X)
            return np.where(np.abs(rows) <= self.max_norm * self._known_scales(), rows, np.nan)

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                "DPPCA has not learned anything yet: there are no components, and no scores",
                NothingLearnedWarning,
                stacklevel=3,
            )

    def _projector(self) -> Projector | None:
        """The projector that scores raw records; None before anything has been learned."""
        if not self._learned:
            return None
        if isinstance(self._method, LearnedMethod | WideMethod):
            return self._method.projector(self._slots.features)
        return Projector.plain(self._slots.features, self._method.W, self._known_scales())

    # State

    def state(self) -> dict[str, Any]:
        """The state of the estimator, as plain JSON: released values and counters, no record.

        The partial batch is not in it: its records must be read again after a restore.
        """
        self._refuse_if_interrupted()
        release = self.last_release
        return {
            "version": saved.VERSION,
            "unit": self.unit,
            "config": self._config(),
            "n_batches": self._n_batches,
            "learned": self._learned,
            "method": self._method.state(),
            "release": None if release is None else release.model_dump(mode="json"),
        }

    @classmethod
    def from_state(
        cls, state: dict[str, Any], *, sampler: Sampler = "exact", **expected: Any
    ) -> DPPCA:
        """An estimator that resumes where `state` was taken, with an empty partial batch.

        Parameters
        ----------
        state
            Result of `state()`, also after a round trip through JSON; also a state of version 1.
        sampler
            Source of the noise of the next batches. It is not part of the state.
        expected
            Parameters of `DPPCA`. One that differs from the state's is refused by name. All others
            come from the state, never from the current defaults.

        Examples
        --------
        >>> pca = DPPCA(features=("a", "b"), epsilon=1.0, delta=1e-6, batch_size=1000)
        >>> DPPCA.from_state(pca.state(), epsilon=2.0)
        Traceback (most recent call last):
        ...
        stream_dppca.errors.StateError: state field `config.epsilon` is 1.0, expected 2.0
        """
        state = saved.sections(state)
        names = dict(inspect.signature(cls).parameters)
        del names["sampler"]
        params = saved.complete(state["config"], names) | {"sampler": sampler}
        try:
            params["features"] = tuple(params["features"])
            if params["step"] is not None:
                params["step"] = InverseTime(**params["step"])
            restored = cls(**params)
        except (TypeError, ParameterError) as error:
            raise StateError("config", f"cannot be used: {error}") from None
        config, wanted = restored._config(), cls(**{**params, **expected})._config()
        for name in expected:
            if wanted[name] != config[name]:
                problem = f"is {config[name]!r}, expected {wanted[name]!r}"
                raise StateError(f"config.{name}", problem)
        try:
            restored._method.load(state["method"])
            restored._n_batches = int(state["n_batches"])
            if restored._n_batches < 0:
                raise StateError("n_batches", "must not be negative")
            if isinstance(restored._slots, SubjectTable) and restored.horizon is not None:
                restored._slots.open = restored._n_batches < restored.horizon
            if state["release"] is not None:
                restored._release = Release.model_validate(state["release"])
            restored._learned = _has_learned(state, restored.last_release)
        except StateError:
            raise
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise StateError("method", f"cannot be used: {type(error).__name__}") from None
        return restored

    def _config(self) -> dict[str, Any]:
        params: dict[str, Any] = {}
        for name in _kept_parameters(type(self)):
            value = getattr(self, name)
            params[name] = value.item() if isinstance(value, np.generic) else value
        params["features"] = list(self._slots.features)
        params["scales"] = "learn" if self._learns_scales else self._scale_list()
        if self.step is not None:
            if not isinstance(self.step, InverseTime):
                raise StateError("config.step", "must be an InverseTime to be saved")
            params["step"] = {"c1": self.step.c1, "c2": self.step.c2}
        return params

    # Construction

    @property
    def _learns_scales(self) -> bool:
        return isinstance(self.scales, str)

    @property
    def _learns(self) -> bool:
        """True if a centre or scales are learned. `method="paper"` takes records as they are."""
        return self.method != "paper" and (self.center == "mean" or self._learns_scales)

    def _subjects(self) -> Subjects | None:
        return Subjects(self.period, self.records) if self.unit == "subject" else None

    def _make_slots(self) -> SlotBuffer | SubjectTable:
        if self.unit == "record":
            return SlotBuffer(self.features, self.batch_size, self._reading())
        return SubjectTable(
            self.features,
            self.subject,
            self.batch_size,
            self.records,
            self._reading(),
            own=self.center == "own",
        )

    def _statement(self) -> PrivacyStatement | SubjectStatement:
        said: dict[str, Any] = {
            "epsilon": float(self.epsilon),
            "delta": float(self.delta),
            "method": self.method,
            "private": self._noise.private,
        }
        if self.unit == "record":
            return PrivacyStatement(**said)
        return SubjectStatement.of(
            subject=str(self.subject),
            period=self.period,
            horizon=self.horizon,
            records=self.records,
            **said,
        )

    def _reading(self) -> Reading:
        scales = None if self._learns else self._scale_list()
        return Reading(
            max_norm=self.max_norm,
            scales=None if scales is None else tuple(scales),
            pairs=self.center == "pairs",
            partial=self.missing == "center",
        )

    def _known_scales(self) -> FloatArray:
        scales = self._scale_list()
        return np.ones(len(self.features)) if scales is None else np.array(scales)

    def _make_method(self) -> Method:
        start = self._noise.at_batch(0).direction(len(self.features), self.n_components)
        W = orthonormal(start)
        if self.method == "paper":
            return PaperMethod(
                W=W,
                epsilon=self.epsilon,
                delta=self.delta,
                K=self.K,
                a=self.a,
                zeta=self.zeta,
                C1=self.C1,
                schedule=self.step or InverseTime(),
            )
        units = self.batch_size // self._slots.reading.records_per_unit
        if self._learns:
            how: dict[str, Any] = {
                "W": W,
                "epsilon": self.epsilon,
                "delta": self.delta,
                "units": units,
                "known_center": self.center != "mean",
                "scales": None if self._learns_scales else self._known_scales(),
                "memory": self.memory,
            }
            if len(W) > MOST_FEATURES and self.unit == "record":
                return WideMethod(**how)
            return LearnedMethod(**how, subjects=self._subjects())
        return adaptive_method(
            W=W,
            epsilon=self.epsilon,
            delta=self.delta,
            rows=units,
            memory=self.memory,
            subjects=self._subjects(),
        )

    def _check_parameters(self) -> None:
        features = self.features
        if isinstance(features, str) or not isinstance(features, Sequence) or not features:
            raise ParameterError("features", "must be a non-empty tuple of names", features)
        if len(set(features)) != len(features):
            raise ParameterError("features", "must not name a feature twice", features)
        check_budget(self.epsilon, self.delta)
        one_of("method", self.method, get_args(MethodName))
        largest = LARGEST_ALONE if self.method == "paper" else LARGEST_BATCH
        whole("batch_size", self.batch_size, 2, largest)
        whole("n_components", self.n_components, 1, len(features))
        one_of("center", self.center, get_args(Centering))
        one_of("sampler", self.sampler, get_args(Sampler))
        one_of("missing", self.missing, get_args(Missing))
        if self.center == "pairs" and self.batch_size % 2:
            raise ParameterError("batch_size", 'must be even with center="pairs"', self.batch_size)
        if self.seed is not None:
            whole("seed", self.seed, 0, 2**63 - 1)
        for name, low, high in (
            ("max_norm", 1e-18, 1e18),
            ("K", 1e-3, 1e3),
            ("a", 0.0, 10.0),
            ("zeta", 1e-12, 0.5),
            ("C1", 0.1, 1e3),
        ):
            between(name, getattr(self, name), low, high)
        self._check_scales()
        self._check_memory()
        self._check_unit()
        single = self.center not in ("pairs", "own")
        if self.missing == "center" and not (self._learns and single):
            rule = 'must be "null" unless a centre or scales are learned from single records'
            raise ParameterError("missing", rule, self.missing)
        if self.step is not None and not callable(self.step):
            raise ParameterError("step", "must be a schedule such as InverseTime", self.step)

    def _check_unit(self) -> None:
        one_of("unit", self.unit, get_args(Unit))
        whole("period", self.period, 1, 10**6)
        if self.horizon is not None:
            whole("horizon", self.horizon, 1, 10**9)
        whole("records", self.records, 1, MOST_RECORDS)
        if self.unit == "record":
            if self.center == "own":
                rule = 'must not be "own" unless unit="subject"'
                raise ParameterError("center", rule, self.center)
            for name in ("subject", "period", "horizon"):
                if getattr(self, name) != saved.AS_BEFORE[name]:
                    rule = 'must be left out unless unit="subject"'
                    raise ParameterError(name, rule, getattr(self, name))
            return
        if self.subject is None or self.subject in self.features:
            rule = 'must name the id of a record, which is not a feature, with unit="subject"'
            raise ParameterError("subject", rule, self.subject)
        if self.method == "paper":
            rule = 'must be "adaptive" with unit="subject": the paper assumes one record per person'
            raise ParameterError("method", rule, self.method)
        if self.center == "pairs":
            rule = 'must not be "pairs" with unit="subject": pairs of neighbours mix subjects'
            raise ParameterError("center", rule, self.center)
        if self.center == "own" and self.records < 2:
            rule = 'must be at least 2 with center="own"'
            raise ParameterError("records", rule, self.records)
        if self.batch_size * self.records > LARGEST_ALONE:
            rule = f"must be at most {LARGEST_ALONE} / records"
            raise ParameterError("batch_size", rule, self.batch_size)
        d, k = len(self.features), self.n_components
        numbers = max(d * (d + 1) // 2 + d + 1, (d + 1) * k) + 129 * d
        if self.sampler == "opendp" and numbers * self.period > OpenDPNoise.MOST_COORDINATES:
            raise ParameterError("sampler", 'must be "exact" for this many numbers', self.sampler)

    def _check_memory(self) -> None:
        memory: Any = self.memory
        if isinstance(memory, str) and memory in ("auto", "all"):
            return
        if isinstance(memory, bool | str) or not (
            isinstance(memory, int | float) and 1 < memory <= 1e6  # false for NaN
        ):
            rule = 'must be "auto", "all" or a number of batches above 1, up to 1e6'
            raise ParameterError("memory", rule, memory)

    def _check_scales(self) -> None:
        scales: Any = self.scales
        if scales is None or (isinstance(scales, str) and scales == "learn"):
            return
        if isinstance(scales, str) or not isinstance(scales, Sequence | Mapping | np.ndarray):
            rule = 'must be "learn", None, or numbers in order or by name'
            raise ParameterError("scales", rule, scales)
        rule = f"must have one number for each of the {len(self.features)} features"
        if len(scales) != len(self.features):
            raise ParameterError("scales", rule, len(scales))
        if isinstance(scales, Mapping) and (lost := set(scales) - set(self.features)):
            raise ParameterError("scales", rule, sorted(map(str, lost)))
        for scale in scales.values() if isinstance(scales, Mapping) else scales:
            between("scales", scale, 1e-18, 1e18)

    def _scale_list(self) -> list[float] | None:
        """The scales in the order of the features."""
        scales = self.scales
        if scales is None or isinstance(scales, str):
            return None
        if isinstance(scales, Mapping):
            return [float(scales[name]) for name in self.features]
        return [float(scale) for scale in scales]

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


def _numbers(values: FloatArray | None) -> tuple[float, ...] | None:
    return None if values is None else tuple(values.tolist())


@cache
def _kept_parameters(of: type[DPPCA]) -> tuple[str, ...]:
    """Names of the parameters that a state keeps. All samplers have the same law."""
    names = inspect.signature(of).parameters.values()
    fixed = (p.name for p in names if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
    return tuple(name for name in fixed if name != "sampler")


def _has_learned(state: dict[str, Any], release: Release | None) -> bool:
    """Tell whether a saved model has components; older states show it in their releases only."""
    if "learned" in state:
        return bool(state["learned"])
    return release is not None and (not release.skipped or release.batch > 1)


def _release_of(
    outcome: Outcome,
    components: FloatArray,
    status: Status,
    found: Projector | None,
    features: tuple[Any, ...],
    batch: int,
    n_seen: int | None,
    privacy: PrivacyStatement | SubjectStatement,
) -> Release:
    clamp = None if found is None or np.isinf(found.clamp).any() else found.clamp
    return Release(
        status=status,
        batch=batch,
        n_seen=n_seen,
        subjects=outcome.units,
        features=features,
        components=tuple(map(tuple, components.tolist())),
        spread=_numbers(outcome.spread),
        explained_variance_ratio=_numbers(outcome.ratio),
        explained_variance_ratio_sd=_numbers(outcome.ratio_sd),
        range=outcome.range,
        step=outcome.step,
        drift=outcome.drift,
        skipped=outcome.skipped is not None,
        reason=outcome.skipped,
        sigma=outcome.sigma,
        privacy=privacy,
        center=None if found is None else _numbers(found.center),
        scale=None if found is None else _numbers(found.scale),
        mean=None if found is None else _numbers(found.mean),
        deviation=None if found is None else _numbers(found.deviation),
        clamp=_numbers(clamp),
    )

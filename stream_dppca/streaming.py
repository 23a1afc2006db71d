"""What the estimators of this package share: the buffer, the order of steps, results, the state."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from river import base

from . import state as saved
from .arrays import FloatArray
from .basis import column_signs, orthonormal
from .calibration import check_budget
from .checks import between, loose_budget, whole
from .errors import (
    DPPCAError,
    LooseBudgetWarning,
    NothingLearnedWarning,
    ParameterError,
    StateError,
)
from .frames import frame_like, is_frame, require_frame, rows_of
from .noise import Noise, make_noise
from .outcome import ONLY_RANGE, Method, Outcome
from .projector import By, Projector
from .release import PrivacyStatement, Release, Score, Status, SubjectStatement
from .slots import SlotBuffer
from .statistics import Rows
from .subjects import SubjectTable
from .values import numbers

#: What a release tells of the components stays as long as they do.
_STAY = (
    "spread",
    "explained_variance_ratio",
    "explained_variance_ratio_sd",
    "eigenvalues",
    "eigenvalues_sd",
    "limits",
)
#: What has another name here than in scikit-learn.
_OF_SCIKIT_LEARN = {
    "fit": "learn_array",
    "partial_fit": "learn_array",
    "fit_transform": "learn_array",
    "components_": "components",
    "explained_variance_ratio_": "last_release.explained_variance_ratio",
    "mean_": "last_release: center + scale * mean",
    "scale_": "last_release: scale * deviation",
}


@dataclass(kw_only=True, eq=False, repr=False)  # fields are parameters
class StreamingPCA(base.MiniBatchTransformer):
    """A private PCA on a stream, whatever its method: batches in, releases out.

    Between releases nothing that can be seen depends on the records. Subclasses have the parameters
    below and their own.

    Parameters
    ----------
    features
        The features, a public tuple of names fixed beforehand.
    epsilon, delta
        The guarantee.
    n_components
        Number of components.
    scales
        Public scales by which features are divided; None for none.
    seed
        For tests and simulations: then nothing is private.

    Attributes
    ----------
    n_batches
        Batches released, skipped ones included.
    last_release
        The newest release, None before the first.
    privacy
        The privacy guarantee, as it was when the estimator was made.
    """

    METHOD: ClassVar[str]  #: its name in states and releases
    SCALES: ClassVar[tuple[str, ...]] = ()  #: words that `scales` may be
    NESTED: ClassVar[Mapping[str, Any]]  #: parameters that are objects in a state, and their types

    features: Sequence[Hashable]
    epsilon: float
    delta: float
    n_components: int = 1
    scales: Any = None
    seed: int | None = None

    def __post_init__(self) -> None:
        """Make everything that follows from the parameters."""
        self._check_parameters()
        self._scales = self._known_scales()
        self._slots: SlotBuffer | SubjectTable = self._make_slots()
        name = "places" if isinstance(self._slots, SubjectTable) else "batch_size"
        for problem in loose_budget(self.epsilon, self.delta, self.capacity, name):
            warnings.warn(problem, LooseBudgetWarning, stacklevel=3)
        self._noise: Noise = make_noise(self.seed)
        start = self._noise.at_batch(0).direction(len(self.features), self.n_components)
        self._method: Method = self._make_method(orthonormal(start))
        self._method.check_batch(self.capacity)
        self.privacy = self._statement()
        self.n_batches = 0
        self._used = 0  # slots of all steps so far
        self._await_step()
        self.last_release: Release | None = None
        self._scorer: Projector | None = None  # of the newest release
        self._learned = False  # from at least one batch
        self._interrupted = False  # in the middle of a batch
        self._warned_of_batch = False  # that nothing was learned from one

    @abstractmethod
    def _make_slots(self) -> SlotBuffer | SubjectTable:
        """The place where records wait for a full batch, or for the end of a round."""

    @abstractmethod
    def _make_method(self, W: FloatArray) -> Method:
        """The method, which begins with these components."""

    def _statement(self) -> PrivacyStatement | SubjectStatement:
        said: dict[str, Any] = {
            "epsilon": float(self.epsilon),
            "delta": float(self.delta),
            "method": self.METHOD,
            "private": self._noise.private,
        }
        if isinstance(self._slots, SubjectTable):
            return SubjectStatement.of(self._slots.unit, **said)
        return PrivacyStatement(**said)

    def __copy__(self) -> Self:
        """Return a deep copy: a shallow one would share the partial batch with its original."""
        return copy.deepcopy(self)

    def __getattr__(self, name: str) -> Any:
        """Say what to use in place of a name that scikit-learn has."""
        if name in _OF_SCIKIT_LEARN:
            raise AttributeError(
                f"{type(self).__name__} has no `{name}`: use `{_OF_SCIKIT_LEARN[name]}`, or "
                "stream_dppca.sklearn.PrivatePCA, which has the interface of scikit-learn",
                name=name,
                obj=self,
            )
        return object.__getattribute__(self, name)  # the error of a property, or the usual one

    @property
    def capacity(self) -> int:
        """Records of a batch, or subjects that a round has places for."""
        return self._slots.size

    def _await_step(self) -> None:
        """Gather as many batches as the next step takes at once, or the next round."""
        if isinstance(self._slots, SubjectTable):
            self._slots.await_round(self.n_batches + 1)
        else:
            self._slots.await_batches(self._method.batches_of_step)

    # Learning

    def learn_one(self, x: Any) -> None:
        """Take one record: a dict, or an array of the features in order.

        A bad record, or anything else, is a null in its slot. Nothing in a record raises: a record
        without a slot would shift all records after it. Only a table of records does, an array of
        rows or a frame, which belongs to another method.
        """
        if not isinstance(x, dict):
            x = self._one(x)
        batch = self._slots.put_dict(x)
        if batch is not None:
            self._run(batch)

    def _one(self, x: Any) -> Any:
        """The dict that an array stands for; anything else as it is."""
        if (isinstance(x, np.ndarray) and x.ndim > 1) or is_frame(x):
            rule = "must be one record: `learn_array` takes arrays of rows, `learn_many` frames"
            raise ParameterError("x", rule, type(x).__name__)
        if isinstance(x, np.ndarray) and x.shape == (len(self._slots.features),):
            return dict(zip(self._slots.features, x.tolist(), strict=True))
        return x

    def learn_many(self, X: Any) -> None:
        """Take the rows of a frame (pandas, polars, pyarrow), in order.

        Missing columns make nulls; nothing in the frame raises.
        """
        require_frame(X)
        for batch in self._slots.put_frame(X):
            self._run(batch)

    def _checked_rows(self, X: NDArray[Any]) -> NDArray[np.floating[Any]]:
        """An n x d array of float32 or float64, or an error that names the rule."""
        if not isinstance(X, np.ndarray):
            raise ParameterError("X", "must be a numpy array", type(X).__name__)
        rows = X if X.dtype == np.float32 else numbers(X)
        if rows.ndim != 2 or rows.shape[1] != len(self._slots.features):
            rule = f"must have shape (n, {len(self._slots.features)})"
            raise ParameterError("X", rule, rows.shape)
        return rows

    def _run(self, rows: Rows) -> Release:
        """Learn from a full batch, then show the result."""
        self._refuse_if_interrupted()
        # From here on the records count as used, whatever happens.
        self.n_batches = t = self.n_batches + 1
        self._used += len(rows)
        self._interrupted = True
        with np.errstate(all="ignore"):  # a warning would say something about the records
            outcome = self._method.step(rows, t, self._noise.at_batch(t))
            if not self._learned and outcome.reason is None:
                # From here on, signs follow from release to release.
                self._method.W = self._method.W * column_signs(self._method.W)
                self._learned = True
            release = self._release_of(outcome)
        self.last_release, self._scorer, self._interrupted = release, None, False
        self._await_step()
        if outcome.reason not in (None, ONLY_RANGE):
            self._warn_of_batch(t, str(outcome.reason))
        return release

    def _release_of(self, outcome: Outcome) -> Release:
        told, found, before = dict(vars(outcome)), self._found(), self.last_release
        if outcome.spread is None and self._learned and before is not None:
            told |= {name: getattr(before, name) for name in _STAY}
        names = ("center", "scale", "mean", "deviation")
        if found is not None:
            told |= {name: getattr(found, name) for name in names}
            told["clamp"] = None if np.isinf(found.clamp).any() else found.clamp
        elif self._learned and before is not None:  # the stream has changed: the last ones stay
            told |= {name: getattr(before, name) for name in (*names, "clamp")}
        told["components"] = self.components
        if outcome.subjects is not None:
            told["subjects"] = max(outcome.subjects, 0.0)  # of few, noise says less than none
        return Release(
            status=self._status(outcome),
            batch=self.n_batches,
            n_seen=None if isinstance(self._slots, SubjectTable) else self._used,
            first_batches=self.first_batches,
            features=self._slots.features,
            privacy=self.privacy,
            **{name: _plain(value) for name, value in told.items()},
        )

    def _warn_of_batch(self, batch: int, reason: str) -> None:
        """Warn once that nothing was learned. The reason is part of the release."""
        if not self._warned_of_batch:
            self._warned_of_batch = True
            warnings.warn(
                f"{type(self).__name__} has learned nothing from batch {batch}: {reason}. "
                "If this continues, check the feature names: those of the columns of an array that "
                "river's convert_river_to_sklearn passes on are 0, 1, ...",
                NothingLearnedWarning,
                stacklevel=4,
            )

    def _status(self, outcome: Outcome) -> Status:
        if outcome.reason == ONLY_RANGE:
            return "starting"
        if not self._learned:
            return "nothing_learned"
        return "learned" if outcome.reason is None else "skipped"

    def _refuse_if_interrupted(self) -> None:
        """Raise if a batch ended half-way (Ctrl-C, no memory): no state knows what it has spent."""
        if self._interrupted:
            rounds = isinstance(self._slots, SubjectTable)
            used, number = ("rounds", self.n_batches) if rounds else ("records", self.n_seen)
            raise DPPCAError(
                f"batch {self.n_batches} was interrupted, so this model cannot continue. Restore "
                f"the last state that was saved, and do not use the first {number} {used} of "
                "this stream again."
            )

    # Results

    @property
    def components(self) -> FloatArray:
        """k x d, orthonormal rows; no rows before anything has been learned."""
        d = len(self._slots.features)
        return np.ascontiguousarray(self._method.W.T) if self._learned else np.zeros((0, d))

    @property
    def first_batches(self) -> int:
        """Batches that the first step takes at once, or rounds that ask for its answers."""
        return self._method.first_batches

    @property
    def step_batches(self) -> int:
        """Batches that the next step takes at once: one, except for a first step."""
        return self._method.batches_of_step

    @property
    def n_seen(self) -> int:
        """Slots taken, the partial batch included. With subjects it is not public, and absent."""
        if isinstance(self._slots, SubjectTable):
            raise AttributeError("n_seen is not public with privacy per subject")
        return self._used + self._slots.waiting

    # Scores, as those of `Projector`

    def _projector(self) -> Projector:
        """The projector of the newest release; without components if nothing is known."""
        if self._scorer is None:
            features, release = self._slots.features, self.last_release
            nothing = Projector.plain(features, np.zeros((len(features), 0)), self._scales)
            self._scorer = nothing if release is None else Projector.from_release(release)
        return self._scorer

    def transform_one(self, x: dict[Any, Any]) -> dict[Hashable, Any]:
        """Scores along the components, {0: ..., 1: ...}, for the next step of a river pipeline.

        They are never NaN: 0, the mean, takes the place of scores that are not known, because the
        record cannot be read, or because nothing has been learned yet. `transform` tells.
        """
        known = np.nan_to_num([*self.transform(x).values()]).tolist()
        return dict(enumerate(known or [0.0] * self.n_components))

    def transform_many(self, X: Any) -> Any:
        """Scores of the rows of a frame, in a frame of its kind with its index; never NaN.

        The columns are 0, 1, ... in pandas and "0", "1", ... elsewhere.
        """
        require_frame(X)
        known = np.nan_to_num(self.transform(rows_of(X, self._slots.features)))
        known = known if known.shape[1] else np.zeros((len(known), self.n_components))
        return frame_like(X, known, range(self.n_components))

    def transform(self, X: Any) -> Any:
        """Scores along the components of one record (a dict), a frame or an n x d array.

        They are NaN where a record has too few features that can be read; there are none before
        anything has been learned.
        """
        return self._projector().transform(X)

    def spe(self, X: Any) -> Any:
        """Squared distance of records from the components, in variances of the features."""
        return self._projector().spe(X)

    def t2(self, X: Any) -> Any:
        """Squared distance of records along the components, in variances along each."""
        return self._projector().t2(X)

    def n_read(self, X: Any) -> Any:
        """Number of features that records have, of those with spread."""
        return self._projector().n_read(X)

    def contributions(self, X: Any, to: Score = "spe") -> Any:
        """What each feature adds to a score of records; negative if the feature is too low."""
        return self._projector().contributions(X, to)

    def is_anomaly(self, X: Any, rate: float = 0.01, by: By = "either") -> Any:
        """Tell whether a score of records exceeds its limit; None if that is not known."""
        return self._projector().is_anomaly(X, rate, by)

    def _found(self) -> Projector | None:
        """The numbers of the next release; None before anything has been learned."""
        if not self._learned:
            return None
        return Projector.plain(self._slots.features, self._method.W, self._scales)

    # State

    def state(self) -> dict[str, Any]:
        """The state of the estimator, as plain JSON: released values and counters, no record.

        The partial batch is not in it: its records must be read again after a restore.
        """
        self._refuse_if_interrupted()
        release = self.last_release
        return {
            "version": saved.VERSION,
            "config": self._config(),
            "n_batches": self.n_batches,
            "method": self._method.state(),
            "release": None if release is None else release.model_dump(mode="json"),
        }

    @classmethod
    def _parameters(cls) -> tuple[str, ...]:
        """Names of the parameters, all of which a state keeps."""
        return tuple(field.name for field in dataclasses.fields(cls) if field.init)

    @classmethod
    def from_state(cls, state: dict[str, Any], **expected: Any) -> Self:
        """An estimator that resumes where `state` was taken, with an empty partial batch.

        Parameters
        ----------
        state
            Result of `state()`, also after a round trip through JSON.
        expected
            Parameters of the estimator. One that differs from the state's is refused by name. All
            others come from the state, never from the current defaults.

        Examples
        --------
        >>> from stream_dppca import DPPCA
        >>> pca = DPPCA(features=("a", "b"), epsilon=1.0, delta=1e-6, batch_size=1000)
        >>> DPPCA.from_state(pca.state(), epsilon=2.0)
        Traceback (most recent call last):
        ...
        stream_dppca.errors.StateError: state field `config.epsilon` is 1.0, expected 2.0
        """
        state = saved.sections(state)
        params = saved.settings(state["config"], cls.METHOD, cls._parameters())
        try:
            params["features"] = tuple(params["features"])
            for name, kind in cls.NESTED.items():
                if isinstance(params[name], Mapping):
                    params[name] = kind(**params[name])
            restored = cls(**params | expected)
        except (TypeError, ParameterError) as error:
            raise StateError("config", f"cannot be used: {error}") from None
        config = restored._config()
        for name in expected:
            saved.compare(f"config.{name}", state["config"][name], config[name])
        try:
            restored._method.load(state["method"])
            if state["release"] is not None:
                restored.last_release = release = Release.model_validate(state["release"])
                restored._learned = bool(release.components)
                restored.n_batches, restored._used = release.batch, release.n_seen or 0
            saved.compare("n_batches", state["n_batches"], restored.n_batches)
            restored._await_step()
        except StateError:
            raise
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise StateError("method", f"cannot be used: {type(error).__name__}") from None
        return restored

    def _config(self) -> dict[str, Any]:
        """The parameters as plain JSON."""
        config = {name: _plain(getattr(self, name)) for name in self._parameters()}
        config["features"] = list(self._slots.features)
        config["scales"] = self.scales if self._scales is None else self._scales.tolist()
        return {"method": self.METHOD, **config}

    # Parameters

    def _check_parameters(self) -> None:
        features = self.features
        if isinstance(features, str) or not isinstance(features, Sequence) or not features:
            raise ParameterError("features", "must be a non-empty tuple of names", features)
        if twice := [name for name in dict.fromkeys(features) if features.count(name) > 1]:
            raise ParameterError("features", "must not name a feature twice", twice[:5])
        check_budget(self.epsilon, self.delta)
        whole("n_components", self.n_components, 1, len(features))
        if self.seed is not None:
            whole("seed", self.seed, 0, 2**63 - 1)

    def _known_scales(self) -> FloatArray | None:
        """The scales in the order of the features; None if none are known."""
        scales, words = self.scales, self.SCALES
        if scales is None or (isinstance(scales, str) and scales in words):
            return None
        rule = f"must be {''.join(f'{word!r}, ' for word in words)}None, or one number for each of "
        rule += f"the {len(self.features)} features, in order or by name"
        if isinstance(scales, Mapping):
            missing = [name for name in self.features if name not in scales]
            others = [name for name in scales if name not in self.features]
            if missing or others:
                raise ParameterError("scales", rule, {"missing": missing[:5], "others": others[:5]})
            scales = [scales[name] for name in self.features]
        ordered = isinstance(scales, Sequence | np.ndarray) and not isinstance(scales, str)
        if not ordered or len(scales) != len(self.features):
            raise ParameterError("scales", rule, scales)
        for scale in scales:
            between("scales", scale, 1e-18, 1e18)
        return np.array(scales, dtype=np.float64)


def _plain(value: Any) -> Any:
    """A parameter or a result as plain JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value

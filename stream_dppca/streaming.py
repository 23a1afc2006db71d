"""What the estimators of this package share: the buffer, the order of steps, results, the state."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import warnings
from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Self, get_args

import numpy as np
from numpy.typing import NDArray
from river import base

from . import state as saved
from .arrays import FloatArray
from .calibration import check_budget
from .checks import between, loose_budget, one_of, whole
from .errors import (
    DPPCAError,
    LooseBudgetWarning,
    NothingLearnedWarning,
    ParameterError,
    StateError,
)
from .frames import frame_like, is_frame, require_frame
from .noise import Noise, Sampler, make_noise
from .oja import column_signs, orthonormal
from .outcome import ONLY_RANGE, Method, Outcome
from .projector import By, Projector
from .release import PrivacyStatement, Release, Score, Status, SubjectStatement
from .slots import SlotBuffer
from .statistics import Rows
from .subjects import SubjectTable
from .values import numbers

__all__ = ["StreamingPCA"]

#: What has another name here than in scikit-learn.
_OF_SCIKIT_LEARN = {
    "fit": "learn_array",
    "partial_fit": "learn_array",
    "fit_transform": "learn_array",
    "components_": "components",
    "explained_variance_ratio_": "last_release.explained_variance_ratio",
    "mean_": "last_release.center",
    "scale_": "last_release.scale",
}


class StreamingPCA(base.MiniBatchTransformer):
    """A private PCA on a stream, whatever its method: batches in, releases out.

    Between releases nothing that can be seen depends on the records. Subclasses have the parameters
    below and their own, and call `_begin` when all are set.

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
    max_norm
        Public cap on the norm of a scaled record.
    sampler, seed
        Source of the noise.
    """

    METHOD: ClassVar[str]  #: its name in states and releases

    features: Sequence[Hashable]
    epsilon: float
    delta: float
    n_components: int
    scales: Any
    max_norm: float
    sampler: Sampler
    seed: int | None

    def _begin(self) -> None:
        """Make everything that follows from the parameters."""
        self._check_parameters()
        self._slots: SlotBuffer | SubjectTable = self._make_slots()
        name = "places" if isinstance(self._slots, SubjectTable) else "batch_size"
        for problem in loose_budget(self.epsilon, self.delta, self.capacity, name):
            warnings.warn(problem, LooseBudgetWarning, stacklevel=3)
        self._noise: Noise = make_noise(self.seed, self.sampler)
        start = self._noise.at_batch(0).direction(len(self.features), self.n_components)
        self._method: Method = self._make_method(orthonormal(start))
        self._method.check_batch(self.capacity)
        self._privacy = self._statement()
        self._n_batches = 0
        self._used = 0  # slots of all steps so far
        self._await_step()
        self._release: Release | None = None
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
        return PrivacyStatement(**self._said())

    def _said(self) -> dict[str, Any]:
        """The part of the statement that does not depend on the unit."""
        return {
            "epsilon": float(self.epsilon),
            "delta": float(self.delta),
            "method": self.METHOD,
            "private": self._noise.private,
        }

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
        """Gather as many batches as the next step takes at once."""
        if isinstance(self._slots, SlotBuffer):
            self._slots.batches = self._method.batches_of_step

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

    def _run(self, rows: Rows) -> None:
        """Learn from a full batch, then show the result."""
        self._refuse_if_interrupted()
        # From here on the records count as used, whatever happens.
        self._n_batches = t = self._n_batches + 1
        self._used += len(rows)
        self._interrupted = True
        with np.errstate(all="ignore"):  # a warning would say something about the records
            outcome = self._method.step(rows, t, self._noise.at_batch(t))
            if not self._learned and outcome.skipped is None:
                # From here on, signs follow from release to release.
                self._method.W = self._method.W * column_signs(self._method.W)
                self._learned = True
            release = self._release_of(outcome)
        self._release, self._scorer, self._interrupted = release, None, False
        self._await_step()
        if outcome.skipped not in (None, ONLY_RANGE):
            self._warn_of_batch(t, str(outcome.skipped))

    def _release_of(self, outcome: Outcome) -> Release:
        found, spread, limits = self._found(), _numbers(outcome.spread), outcome.limits
        if spread is None and self._learned and self._release is not None:
            spread, limits = self._release.spread, self._release.limits  # they stay
        clamp = None if found is None or np.isinf(found.clamp).any() else found.clamp
        return Release(
            status=self._status(outcome),
            batch=self._n_batches,
            n_seen=None if isinstance(self._slots, SubjectTable) else self._used,
            subjects=outcome.units,
            first_batches=self.first_batches,
            features=self._slots.features,
            components=tuple(map(tuple, self.components.tolist())),
            spread=spread,
            explained_variance_ratio=_numbers(outcome.ratio),
            explained_variance_ratio_sd=_numbers(outcome.ratio_sd),
            eigenvalues=_numbers(outcome.eigenvalues) or (),
            eigenvalues_sd=_numbers(outcome.eigenvalues_sd) or (),
            limits=limits,
            range=outcome.range,
            step=outcome.step,
            drift=outcome.drift,
            shift=outcome.shift,
            skipped=outcome.skipped is not None,
            reason=outcome.skipped,
            sigma=outcome.sigma,
            privacy=self.privacy,
            center=None if found is None else _numbers(found.center),
            scale=None if found is None else _numbers(found.scale),
            mean=None if found is None else _numbers(found.mean),
            deviation=None if found is None else _numbers(found.deviation),
            clamp=_numbers(clamp),
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
        if outcome.skipped == ONLY_RANGE:
            return "starting"
        if not self._learned:
            return "nothing_learned"
        return "learned" if outcome.skipped is None else "skipped"

    def _refuse_if_interrupted(self) -> None:
        """Raise if a batch ended half-way (Ctrl-C, no memory): no state knows what it has spent."""
        if self._interrupted:
            rounds = isinstance(self._slots, SubjectTable)
            used, number = ("rounds", self._n_batches) if rounds else ("records", self.n_seen)
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

    @property
    def n_batches(self) -> int:
        """Batches released, skipped ones included."""
        return self._n_batches

    @property
    def first_batches(self) -> int:
        """Batches that the first step takes at once, or rounds that ask for its answers."""
        return self._method.first_batches

    @property
    def step_batches(self) -> int:
        """Batches that the next step takes at once: one, except for the first step."""
        return self._method.batches_of_step

    @property
    def n_seen(self) -> int:
        """Slots taken, the partial batch included. With subjects it is not public, and absent."""
        if isinstance(self._slots, SubjectTable):
            raise AttributeError("n_seen is not public with privacy per subject")
        return self._used + self._slots.waiting

    @property
    def last_release(self) -> Release | None:
        """The newest release, None before the first."""
        return self._release

    @property
    def privacy(self) -> PrivacyStatement | SubjectStatement:
        """The privacy guarantee, as it was when the estimator was made."""
        return self._privacy

    # Scores, as those of `Projector`

    def _projector(self) -> Projector:
        """The projector of the newest release; without components if nothing is known."""
        if self._scorer is None:
            features, release = self._slots.features, self.last_release
            nothing = Projector.plain(features, np.zeros((len(features), 0)), self._known_scales())
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
        known = np.nan_to_num(self.transform(self._slots.frame_to_rows(X)))
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
        """Number of features with spread that records have."""
        return self._projector().n_read(X)

    def contributions(self, X: Any, to: Score = "spe") -> Any:
        """What each feature adds to a score of records; negative if the feature is too low."""
        return self._projector().contributions(X, to)

    def is_anomaly(self, X: Any, rate: float = 0.01, by: By = "either") -> Any:
        """Tell whether a score of records exceeds its limit; None if that is not known."""
        return self._projector().is_anomaly(X, rate, by)

    def inverse_transform(self, scores: NDArray[Any]) -> FloatArray:
        """Raw records, n x d, that have these scores and lie in the private subspace."""
        return self._projector().inverse_transform(scores)

    def raw_directions(self) -> FloatArray:
        """k x d: changes of raw features along each component."""
        return self._projector().raw_directions()

    def raw_weights(self) -> FloatArray:
        """k x d: weights of raw features in each score, as long as nothing is clamped."""
        return self._projector().raw_weights()

    def _found(self) -> Projector | None:
        """The numbers of the next release; None before anything has been learned."""
        if not self._learned:
            return None
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
            "config": self._config(),
            "n_batches": self._n_batches,
            "slots": self._used,
            "method": self._method.state(),
            "release": None if release is None else release.model_dump(mode="json"),
        }

    @classmethod
    def from_state(
        cls, state: dict[str, Any], *, sampler: Sampler = "exact", **expected: Any
    ) -> Self:
        """An estimator that resumes where `state` was taken, with an empty partial batch.

        Parameters
        ----------
        state
            Result of `state()`, also after a round trip through JSON.
        sampler
            Source of the noise of the next batches. It is not part of the state.
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
        params = saved.settings(state["config"], cls.METHOD, _kept_parameters(cls))
        params |= {"sampler": sampler}
        try:
            params = cls._from_config(params)
            restored = cls(**params)
        except (TypeError, ParameterError) as error:
            raise StateError("config", f"cannot be used: {error}") from None
        config, wanted = restored._config(), cls(**{**params, **expected})._config()
        for name in expected:
            saved.compare(f"config.{name}", config[name], wanted[name])
        try:
            restored._method.load(state["method"])
            restored._n_batches = int(state["n_batches"])
            restored._used = int(state["slots"])
            if restored._used < 0:
                raise StateError("slots", "must not be negative")
            restored._await_step()
            released = 0
            if state["release"] is not None:
                restored._release = release = Release.model_validate(state["release"])
                restored._learned, released = bool(release.components), release.batch
            saved.compare("n_batches", restored._n_batches, released)
        except StateError:
            raise
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise StateError("method", f"cannot be used: {type(error).__name__}") from None
        return restored

    def _config(self) -> dict[str, Any]:
        """The parameters as plain JSON."""
        config = {name: _plain(getattr(self, name)) for name in _kept_parameters(type(self))}
        config["features"] = list(self._slots.features)
        config["scales"] = self._scale_list()
        return {"method": self.METHOD, **config}

    @classmethod
    def _from_config(cls, config: dict[str, Any]) -> dict[str, Any]:
        """The parameters of which `_config` has made plain JSON."""
        return config | {"features": tuple(config["features"])}

    # Parameters

    def _check_parameters(self) -> None:
        features = self.features
        if isinstance(features, str) or not isinstance(features, Sequence) or not features:
            raise ParameterError("features", "must be a non-empty tuple of names", features)
        if len(set(features)) != len(features):
            raise ParameterError("features", "must not name a feature twice", features)
        check_budget(self.epsilon, self.delta)
        whole("n_components", self.n_components, 1, len(features))
        one_of("sampler", self.sampler, get_args(Sampler))
        if self.seed is not None:
            whole("seed", self.seed, 0, 2**63 - 1)
        between("max_norm", self.max_norm, 1e-18, 1e18)

    def _check_scales(self, words: str = "None") -> None:
        scales = self.scales
        if scales is None:
            return
        if isinstance(scales, str) or not isinstance(scales, Sequence | Mapping | np.ndarray):
            rule = f"must be {words}, or numbers in order or by name"
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

    def _known_scales(self) -> FloatArray:
        scales = self._scale_list()
        return np.ones(len(self.features)) if scales is None else np.array(scales)


def _numbers(values: FloatArray | None) -> tuple[float, ...] | None:
    return None if values is None else tuple(values.tolist())


@cache
def _kept_parameters(of: type[StreamingPCA]) -> tuple[str, ...]:
    """Names of the parameters that a state keeps. All samplers have the same law."""
    names = inspect.signature(of).parameters.values()
    fixed = (p.name for p in names if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
    return tuple(name for name in fixed if name != "sampler")


def _plain(value: Any) -> Any:
    """A parameter as plain JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return value.item() if isinstance(value, np.generic) else value

"""`PrivatePCA`: the estimator with the interface of scikit-learn.

    pip install "stream-dppca[sklearn]"

docs/sklearn.md has what differs from `sklearn.decomposition.IncrementalPCA`, and how to count what
several fits spend.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from .arrays import FloatArray
from .errors import BatchSizeError, NothingLearnedWarning, ParameterError
from .estimator import DPPCA
from .frames import is_frame, rows_of
from .values import numbers

#: `fit` warns if centre and scales would take more than this many batches of as many rows.
_FEW = 2


@dataclass(eq=False, repr=False)  # fields are parameters
class PrivatePCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Differentially private PCA for scikit-learn: centres, scales and projects.

    **Every fit spends epsilon anew.** What one `fit` shows is (epsilon, delta)-differentially
    private with respect to replacing one row; `privacy_` says so. Fits on the same rows add up: a
    `GridSearchCV` fits once per candidate and fold, and once more at the end (use `KFold`: folds
    that are chosen by labels move many rows if one label differs).
    `stream_dppca.calibration.epsilon_of_periods(epsilon, delta, fits)` is what all of them spend.
    Calls of `partial_fit` continue one stream, where every row is used once: they spend epsilon
    together.

    **Rows must come raw.** An earlier step that learns from the rows, such as a `StandardScaler`,
    is not private. Features are centred and scaled here. Scores of rows are about those rows, and
    not private; the model is.

    A row with a value that is missing, infinite or not a number is a null: it counts as a row and
    teaches nothing. No row raises an error. In `transform` such a value is what the components make
    of the others, and a row that has fewer than half of its features has the score 0.

    With too few rows there is a `NothingLearnedWarning`. If nothing was learned, `components_` and
    `explained_variance_ratio_` are zeros, and so are all scores: steps after this one still work.

    Parameters
    ----------
    n_components
        Number of components; None for as many as there are features.
    epsilon, delta
        The guarantee. Both must be given.
    batch_size
        Rows of a batch of `partial_fit`; None for the rows of the first call, or more if so few
        would teach nothing. `fit` takes all rows as one batch.
    center, scales, memory, missing, limits
        As for `DPPCA`.
    seed
        For tests and simulations only: the noise can be drawn again, so **nothing is private**, and
        `privacy_.private` is False.

    Attributes
    ----------
    components_
        n_components x n_features: directions of unit length of the scaled features, the main one
        first.
    explained_variance_ratio_
        Noisy share of the variance of the scaled features along each component.
    mean_, scale_
        Noisy mean and standard deviation of each feature, in its own unit; the scale is 1 for a
        feature without spread. Scores are (X - mean_)/scale_ @ components_.T for values within the
        clamp (`Projector`).
    n_components_
        Number of components.
    n_samples_seen_
        Rows of `fit`, and of every `partial_fit` since.
    n_features_in_, feature_names_in_
        The features. Names are those of a frame.
    privacy_
        The guarantee, as a `PrivacyStatement`.
    release_
        The newest `Release`; None before the first.
    model_
        The `DPPCA`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(7)
    >>> X = 100 + rng.normal(size=(20_000, 1)) * [10, 1, 0] + rng.normal(size=(20_000, 3))
    >>> pca = PrivatePCA(n_components=1, epsilon=1.0, delta=1e-6).fit(X)
    >>> pca.transform(X).shape, pca.get_feature_names_out().tolist()
    ((20000, 1), ['privatepca0'])
    >>> bool(abs(pca.components_[0] @ [0.5**0.5, 0.5**0.5, 0.0]) > 0.98)
    True
    >>> pca.privacy_.epsilon, pca.privacy_.unit, pca.privacy_.private
    (1.0, 'record', True)
    """

    n_components: int | None = None
    _: KW_ONLY
    epsilon: float | None = None
    delta: float | None = None
    batch_size: int | None = None
    center: Literal["mean", "none"] = "mean"
    scales: Sequence[float] | Mapping[Any, float] | Literal["learn"] | None = "learn"
    memory: float | Literal["auto", "all"] = "auto"
    missing: Literal["null", "center"] = "null"
    limits: bool = True
    seed: int | None = None

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from all rows at once. This spends epsilon, however often it is called."""
        rows = self._rows(X, reset=True)
        self.n_samples_seen_ = len(rows)
        size = max(2, len(rows))
        self.model_ = self._model(size, batches=1)
        if self.model_.capacity > size:
            return self._show("nothing, and components_ are zeros")
        self._learn(rows)
        few = self._model(size).first_batches > _FEW
        return self._show("little" if few else "")

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Continue a stream: learn from every batch that these rows fill. No row may come twice.

        After `fit`, batches are as large as the rows that it had.
        """
        first = not hasattr(self, "model_")
        rows = self._rows(X, reset=first)
        self.n_samples_seen_ = len(rows) + (0 if first else self.n_samples_seen_)
        if first:
            self.model_ = self._model(self.batch_size or max(2, len(rows)), exactly=self.batch_size)
        self._learn(rows)
        return self._show()

    def transform(self, X: Any) -> FloatArray:
        """Scores of rows: n x n_components. They are about these rows, and not private."""
        check_is_fitted(self, "model_")
        rows = self._rows(X, reset=False)
        if not len(self.model_.components):
            return np.zeros((len(rows), self.n_components_))
        return np.asarray(np.nan_to_num(self.model_.transform(rows)))  # 0 if a row has no score

    def inverse_transform(self, X: Any) -> FloatArray:
        """The rows that have these scores and lie in the private subspace."""
        check_is_fitted(self, "model_")
        scores = check_array(X, dtype=np.float64, ensure_all_finite=False, input_name="X")
        return np.asarray(self.mean_ + self.scale_ * (scores @ self.components_))

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.non_deterministic = self.seed is None
        return tags

    def _rows(self, X: Any, *, reset: bool) -> FloatArray:
        """Rows as floats, NaN for what is not a number. Errors say nothing about a value."""
        if is_frame(X):
            rows = rows_of(X)
        elif hasattr(X, "toarray"):  # sparse: it has an error of its own
            rows = X
        else:
            rows = numbers(X if hasattr(X, "__array__") else np.array(X, dtype=object))
        if rows.ndim != 2:
            raise ParameterError("X", "must be a 2D array", rows.shape, "Reshape your data")
        checked = check_array(
            rows, dtype=np.float64, ensure_all_finite=False, estimator=self, input_name="X"
        )
        validate_data(self, X, reset=reset, skip_check_array=True)
        return np.asarray(checked)

    def _model(self, size: int, exactly: int | None = None, batches: int | None = None) -> DPPCA:
        """An estimator for batches of this size, or larger ones if they teach nothing."""
        d = self.n_features_in_
        given = self.get_params(deep=False) | {
            "features": tuple(getattr(self, "feature_names_in_", range(d))),
            "n_components": d if self.n_components is None else self.n_components,
            "batch_size": size,
            "batches": batches,
        }
        try:
            return DPPCA(**given)
        except BatchSizeError as error:
            if exactly is not None:
                raise
            return DPPCA(**given | {"batch_size": error.minimum})

    def _learn(self, rows: FloatArray) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NothingLearnedWarning)  # `_show` says it
            self.model_.learn_array(rows)

    def _show(self, learned: str = "") -> Self:
        """Set the attributes, and warn if little or nothing has been learned."""
        model, d, k = self.model_, self.n_features_in_, self.model_.n_components
        self.release_, self.privacy_, self.n_components_ = model.last_release, model.privacy, k
        self.components_, self.explained_variance_ratio_ = np.zeros((k, d)), np.zeros(k)
        self.mean_, self.scale_ = np.zeros(d), np.ones(d)
        found, release = model._projector(), self.release_
        if release is not None and not release.components:
            learned = f"nothing, and components_ are zeros: {release.reason}"
        elif release is not None:
            self.components_ = model.components
            self.mean_ = found.center + found.scale * found.mean
            spread = found.scale * found.deviation
            self.scale_ = np.where(spread > 0, spread, 1.0)
            if release.explained_variance_ratio is not None:
                self.explained_variance_ratio_ = np.array(release.explained_variance_ratio)
        if learned:
            warnings.warn(
                f"PrivatePCA has learned {learned}. Cells that are not numbers make nulls: "
                f"pandas.to_numeric reads columns of text. Otherwise {self.n_samples_seen_} rows "
                f"are few for {d} features at epsilon = {self.epsilon:g}; stream_dppca.plan says "
                "how many it needs",
                NothingLearnedWarning,
                stacklevel=3,
            )
        return self

"""`PrivatePCA` behaves as scikit-learn asks, spends what it says, and shows nothing of a row."""

from __future__ import annotations

import doctest
import pickle
import re
import warnings
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from river import compat
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from stream_dppca import DPPCA, NothingLearnedWarning, ParameterError, PerSubject
from stream_dppca.sklearn import PrivatePCA

from .support.processes import ROOT

#: Checks that fail on purpose. An error that depends on one value would say something about a row.
EXPECTED = {
    "check_dtype_object": "a value that is not a number makes its row a null, and no error",
    "check_complex_data": "a complex value without an imaginary part is a number, others are nulls",
}


def records(n: int = 8000, seed: int = 0) -> np.ndarray[Any, Any]:
    """Rows whose correlation matrix has the main direction (1, 1, 1, 0)/sqrt 3, nearly."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(n, 1)) * [1, 1, 1, 0]
    return (shared + 0.3 * rng.normal(size=(n, 4))) * [1, 10, 100, 1] + [5, 0, -700, 3]


def private(**parameters: Any) -> PrivatePCA:
    return PrivatePCA(**{"n_components": 2, "epsilon": 1.0, "delta": 1e-6, **parameters})


def aligned(pca: PrivatePCA) -> float:
    return float(abs(pca.components_[0] @ np.array([1, 1, 1, 0]) / 3**0.5))


def test_the_examples_of_the_docs() -> None:
    page = ROOT / "docs/sklearn.md"
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert not failed and tried > 30


@pytest.mark.parametrize(
    "parameters",
    [
        {"seed": 0},  # learns nothing from so few rows
        {"seed": 0, "epsilon": 100.0, "delta": 0.5},  # learns
        {},
    ],
)
def test_checks_of_scikit_learn(parameters: dict[str, Any]) -> None:
    unseeded = {} if "seed" in parameters else {"check_fit_idempotent": "every fit has new noise"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = check_estimator(
            private(n_components=1, **parameters),
            expected_failed_checks=EXPECTED | unseeded,
            on_skip=None,
        )
    failed = {found["check_name"] for found in done if found["status"] == "xfail"}
    assert set(EXPECTED) <= failed <= set(EXPECTED | unseeded)
    page = (ROOT / "docs/sklearn.md").read_text()
    named = set(re.findall(r"\| `(check_\w+)`", page))
    assert named == {*EXPECTED, "check_fit_idempotent"}


def test_one_fit_is_one_release() -> None:
    X = records()
    pca = private().fit(X)
    assert pca.release_.batch == 1 and pca.release_.n_seen == len(X) == pca.n_samples_seen_
    assert (pca.privacy_.epsilon, pca.privacy_.delta, pca.privacy_.private) == (1.0, 1e-6, True)
    assert pca.model_.batches == 1  # its noise does not allow for later batches
    assert aligned(pca) > 0.99
    assert np.allclose(pca.components_ @ pca.components_.T, np.eye(2))
    assert pca.explained_variance_ratio_[0] == pytest.approx(0.7, abs=0.1)
    assert np.allclose(pca.mean_, X.mean(axis=0), atol=0.2 * X.std(axis=0))
    assert np.allclose(pca.scale_, X.std(axis=0), rtol=0.2)
    assert private(seed=3).fit(X).privacy_.private is False


def test_every_fit_draws_new_noise_and_a_seed_does_not() -> None:
    X = records()
    pca = private()
    first = pca.fit(X).components_
    assert not np.array_equal(first, pca.fit(X).components_)
    assert np.array_equal(private(seed=1).fit(X).components_, private(seed=1).fit(X).components_)


def test_scores_are_the_formula_and_come_back() -> None:
    X = records()
    pca = private(n_components=4).fit(X)
    Z = (X[:100] - pca.mean_) / pca.scale_
    scores = pca.transform(X[:100])
    assert np.allclose(scores, Z @ pca.components_.T)  # nothing is clamped so near the centre
    assert np.allclose(pca.inverse_transform(scores), X[:100])
    few = private().fit(X)
    assert np.allclose(few.inverse_transform(np.zeros((1, 2))), few.mean_)
    assert np.allclose(few.transform(few.inverse_transform([[1.0, -1.0]])), [[1.0, -1.0]])


def test_partial_fit_is_a_stream() -> None:
    X = records(12_000)
    pca = private(batch_size=3000, seed=0)
    for rows in np.array_split(X, 7):
        pca.partial_fit(rows)
    same = DPPCA(
        features=tuple(range(4)), n_components=2, epsilon=1.0, delta=1e-6, batch_size=3000, seed=0
    )
    same.learn_array(X)
    assert np.array_equal(pca.components_, same.components) and pca.model_.n_batches == 4
    assert pca.n_samples_seen_ == 12_000 and aligned(pca) > 0.99
    assert private().partial_fit(X[:3000]).model_.capacity == 3000
    assert private().partial_fit(X[:3]).model_.capacity == 87  # less could teach nothing
    with pytest.raises(ParameterError, match="`batch_size` must be at least 87"):
        private(batch_size=3).partial_fit(X)


def test_partial_fit_after_fit_continues_and_fit_begins_anew() -> None:
    X = records(12_000)
    pca = private().fit(X[:4000]).partial_fit(X[4000:8000])
    assert pca.release_.batch == 2 and pca.n_samples_seen_ == 8000
    assert pca.fit(X).release_.batch == 1 and pca.n_samples_seen_ == 12_000


def test_in_a_pipeline_with_frames_and_names() -> None:
    frame = pd.DataFrame(records(), columns=["a", "b", "c", "d"])
    pca = private().set_output(transform="pandas").fit(frame)
    assert pca.feature_names_in_.tolist() == list(pca.release_.features) == ["a", "b", "c", "d"]
    scores = pca.transform(frame)
    assert (
        list(scores.columns) == list(pca.get_feature_names_out()) == ["privatepca0", "privatepca1"]
    )
    with pytest.raises(ValueError, match="feature names"):
        pca.transform(frame[["b", "a", "c", "d"]])
    other = pl.DataFrame(frame.to_dict("list"))
    assert np.array_equal(
        private(seed=0).fit(other).components_, private(seed=0).fit(frame).components_
    )
    label = frame["a"] > 5
    pipeline = make_pipeline(private(), LogisticRegression()).fit(frame, label)
    assert pipeline.score(frame, label) > 0.8
    again = pickle.loads(pickle.dumps(pipeline))
    assert np.array_equal(again.predict(frame), pipeline.predict(frame))
    assert clone(pipeline)[0].get_params() == pipeline[0].get_params()
    assert not hasattr(clone(pipeline)[0], "components_")


def test_a_bad_row_is_a_null_and_never_an_error() -> None:
    X = records()
    bad = X.astype(object)
    for row, value in enumerate((None, "text", np.inf, np.nan, 2 + 1j, {}, 10**400)):
        bad[row, 1] = value
    nulls = X.copy()
    nulls[:7] = np.nan
    expected = private(seed=0).fit(nulls)
    for given in (bad, pd.DataFrame(bad), bad.tolist()):
        found = private(seed=0).fit(given)
        assert np.array_equal(found.components_, expected.components_)
    scores = expected.transform(bad[:7])
    holes = np.where(np.arange(4) == 1, np.nan, X[:7])
    mean = np.where(np.arange(4) == 1, expected.mean_, X[:7])
    assert np.isfinite(scores).all() and np.array_equal(scores, expected.transform(holes))
    errors = [
        np.abs(found - expected.transform(X[:7])).max()
        for found in (scores, expected.transform(mean))
    ]
    assert errors[0] < errors[1]


def test_errors_name_the_parameter_and_show_no_value() -> None:
    X = records()
    with pytest.raises(ParameterError, match=r"`epsilon` .* Found None"):
        PrivatePCA(n_components=1, delta=1e-6).fit(X)
    with pytest.raises(ParameterError, match=r"`delta` .* Found None"):
        PrivatePCA(n_components=1, epsilon=1.0).fit(X)
    with pytest.raises(ParameterError, match=r"`n_components` .* at most 4. Found 5"):
        private(n_components=5).fit(X)
    with pytest.raises(ParameterError, match=r"2D array. Found \(3,\). Reshape") as error:
        private().fit(np.array([12345.0, 2.0, 3.0]))
    assert "12345" not in str(error.value)
    with pytest.raises(ValueError, match="4 features as input"):
        private().fit(X).transform(X[:, :3])
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        private().fit(csr_array(X))
    with pytest.raises(NotFittedError):
        private().transform(X)
    with pytest.raises(TypeError, match="random_state"):  # a habit that would end the privacy
        private(random_state=42)


def test_too_few_rows_warn_and_say_nothing() -> None:
    X = load_iris().data
    with pytest.warns(
        NothingLearnedWarning, match=r"components_ are zeros.* 20 rows are few for 4"
    ):
        pca = private().fit(X[:20])
    assert not pca.components_.any() and not pca.explained_variance_ratio_.any()
    assert not pca.transform(X).any() and pca.transform(X).shape == (150, 2)
    assert np.array_equal(pca.inverse_transform(pca.transform(X)), np.zeros((150, 4)))
    assert pca.privacy_.epsilon == 1.0 and pca.release_ is None
    with pytest.warns(NothingLearnedWarning, match=r"learned (little|nothing)"):
        private().fit(records(200))
    nulls = np.full((4000, 4), np.nan)
    with pytest.warns(NothingLearnedWarning, match=r"zeros: hardly any record could be read"):
        assert not private().fit(nulls).components_.any()
    with pytest.warns(NothingLearnedWarning, match=r"zeros: hardly any record could be read"):
        assert not private().partial_fit(nulls).components_.any()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        private().fit(records(4000))


def test_what_is_known_is_told() -> None:
    X = records() - [5, 0, -700, 3]
    told = private(center="none", scales=[1.0, 10.0, 100.0, 0.3]).fit(X)
    assert aligned(told) > 0.9
    assert private().fit(X).release_.limits and not private(limits=False).fit(X).release_.limits
    raw = private(scales=None, n_components=1).fit(X)  # one unit: the third feature is all of it
    assert abs(raw.components_[0, 2]) > 0.99


@pytest.mark.audit
def test_more_than_a_thousand_features_are_one_batch_too() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(32_000, 1)) + rng.normal(size=(32_000, 1100)).astype(np.float32)
    pca = private(n_components=1, epsilon=8.0, seed=0).fit(X)
    assert pca.model_.n_batches == 1 and pca.model_.capacity == 32_000
    assert abs(pca.components_[0].sum()) / 1100**0.5 > 0.9


def test_a_search_fits_once_per_candidate_and_fold() -> None:
    """What docs/sklearn.md says about counting."""
    X = records(4000)
    counted = []

    class Counted(PrivatePCA):
        def fit(self, X: Any, y: Any = None) -> Counted:
            counted.append(len(X))
            super().fit(X)
            return self

    pipeline = make_pipeline(Counted(epsilon=1.0, delta=1e-6), LogisticRegression())
    search = GridSearchCV(pipeline, {"counted__n_components": [1, 2]}, cv=4)
    search.fit(X, X[:, 0] > 5)
    assert counted == 8 * [3000] + [
        4000
    ]  # a row is in 3 of 4 folds, for 2 candidates, and the last


def test_habits_of_scikit_learn_find_the_way() -> None:
    pca = DPPCA(features=("a", "b"), epsilon=1.0, delta=1e-6, batch_size=1000)
    for name, other in {"fit": "learn_array", "components_": "components"}.items():
        assert not hasattr(pca, name) and hasattr(pca, other)
        with pytest.raises(AttributeError, match=f"no `{name}`: use `{other}`.*PrivatePCA"):
            getattr(pca, name)
    with pytest.raises(AttributeError, match="no attribute 'fits'"):
        pca.fits  # noqa: B018
    subjects = DPPCA(
        features=("a", "b"),
        epsilon=1.0,
        delta=1e-6,
        unit=PerSubject(subject="id", places=1000, records=1),
    )
    with pytest.raises(AttributeError, match="n_seen is not public"):
        subjects.n_seen  # noqa: B018


def test_the_wrapper_of_river() -> None:
    """It names the columns of an array 0, 1, ...; with other names nothing can be learned."""
    X = records(3000)
    named = DPPCA(features=range(4), epsilon=1.0, delta=1e-6, batch_size=1500)
    assert compat.convert_river_to_sklearn(named).fit(X).transform(X).shape == (3000, 1)
    other = DPPCA(features=("a", "b", "c", "d"), epsilon=1.0, delta=1e-6, batch_size=1500)
    with pytest.warns(NothingLearnedWarning, match=r"convert_river_to_sklearn passes on are 0, 1"):
        compat.convert_river_to_sklearn(other).fit(X)

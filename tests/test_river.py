"""Every detector and classifier of river works behind `DPPCA`, from the first record on."""

from __future__ import annotations

import ast
import importlib
import inspect
import math
import pkgutil
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import river
from river import anomaly, base, linear_model, metrics, tree

from stream_dppca import DPPCA, SubspaceDistance, SubspaceT2

N, B = 500, 100
FEATURES = ("a", "b", "c", "d")

#: Models that do not take the scores of a PCA, and why.
NOT_FOR_SCORES = {
    "facto.FFMClassifier": "reads the field of a feature out of its name, which must be text",
    "facto.FwFMClassifier": "reads the field of a feature out of its name, which must be text",
    "misc.ZstdClassifier": "classifies text, from Python 3.14 on",
    "naive_bayes.ComplementNB": "takes counts: the logarithm of a negative score fails",
    "naive_bayes.MultinomialNB": "takes counts: the logarithm of a negative score fails",
}
#: Models that take them, but tell nothing from two real numbers.
AT_CHANCE = {
    "active.EntropySampler": "answers with a pair",
    "dummy.NoChangeClassifier": "looks at no feature",
    "dummy.PriorClassifier": "looks at no feature",
    "linear_model.AdPredictor": "takes features that are 0 or 1",
}
#: Parameters of models that have none of their own for tests, or fail with these.
BALANCED = {
    "classifier": linear_model.LogisticRegression(),
    "desired_dist": {False: 0.5, True: 0.5},
}
PARAMETERS: dict[str, dict[str, Any]] = {
    "imblearn.RandomOverSampler": BALANCED,
    "imblearn.RandomSampler": BALANCED,
    "imblearn.RandomUnderSampler": BALANCED,
    "model_selection.SuccessiveHalvingClassifier": {
        "models": [linear_model.LogisticRegression(), tree.HoeffdingTreeClassifier()],
        "metric": metrics.Accuracy(),
        "budget": 200,
    },
    # Its default divides by the spread of the first values, and fails on any constant feature.
    "tree.SGTClassifier": {
        "feature_quantizer": tree.splitter.DynamicQuantizer(),
        "grace_period": 20,
    },
    # Its default has a scaler that gives NaN for the first record, whatever that is.
    "anomaly.PredictiveAnomalyDetection": {"predictive_model": linear_model.LinearRegression()},
}


KINDS = (
    base.Classifier,
    base.AnomalyDetector,
    base.SupervisedAnomalyDetector,
    base.AnomalyFilter,
)


def models(*kinds: type) -> list[Any]:
    """All classes of river of these kinds, by name."""
    found = {}
    for module in pkgutil.iter_modules(river.__path__):
        for name, made in inspect.getmembers(importlib.import_module(f"river.{module.name}")):
            ours = inspect.isclass(made) and issubclass(made, kinds) and module.name != "base"
            if ours and not inspect.isabstract(made):
                found[made] = f"{module.name}.{name}"
    return [pytest.param(made, id=name) for made, name in sorted(found.items(), key=lambda m: m[1])]


def new(made: Any, name: str) -> Any:
    given = PARAMETERS.get(name) or next(iter(made._unit_test_params()), {})
    return made(**given)


def pca(**settings: Any) -> DPPCA:
    given: dict[str, Any] = {"n_components": 2, "epsilon": 8.0, "delta": 1e-3, "seed": 1}
    return DPPCA(features=FEATURES, batch_size=B, **given | settings)


def stream() -> tuple[list[dict[str, float]], list[bool]]:
    rng = np.random.default_rng(0)
    load = rng.standard_normal((N, 1))
    X = np.hstack([load, load, rng.standard_normal((N, 2))]) + rng.standard_normal((N, 4)) / 4
    return [dict(zip(FEATURES, row, strict=True)) for row in X.tolist()], (load[:, 0] > 0).tolist()


RECORDS, LABELS = stream()
BAD: list[Any] = [{}, {"a": "text"}, dict.fromkeys(FEATURES, math.nan), {"other": 1.0}]


@pytest.mark.parametrize(
    "made", [case for case in models(base.Classifier) if case.id not in NOT_FOR_SCORES]
)
def test_classifiers(made: Any, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.id
    if name.startswith("compat."):
        pytest.importorskip("sklearn")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the models
        pipeline, right = pca() | new(made, name), 0
        for i, (x, y) in enumerate(zip(RECORDS, LABELS, strict=True)):
            found = pipeline.predict_one(x)
            right += i >= N // 2 and found == y
            pipeline.learn_one(x, y)
            if i % 100 == 50:
                for bad in BAD:
                    pipeline.predict_one(bad)
    assert pipeline["DPPCA"].n_batches == N // B - pipeline["DPPCA"].first_batches + 1
    assert name in AT_CHANCE or right > 0.75 * N / 2


@pytest.mark.parametrize("made", models(*KINDS[1:]))
def test_detectors(made: Any, request: pytest.FixtureRequest) -> None:
    detector, before = new(made, request.node.callspec.id), pca()
    supervised = isinstance(detector, base.SupervisedAnomalyDetector)
    found = []
    for x, y in zip(RECORDS, LABELS, strict=True):
        for record in (x, *BAD) if len(found) % 100 == 50 else (x,):
            scores = before.transform_one(record)  # river's pipelines give a detector no target
            target = (float(y),) if supervised else ()
            score = detector.score_one(scores, *target)
            assert math.isfinite(score)
        found.append(score)
        before.learn_one(x)
        detector.learn_one(scores, *target)
    assert len(set(found[N // 2 :])) > 2


def test_the_walk_meets_what_it_should() -> None:
    names = {case.id for case in models(*KINDS)}
    assert set(NOT_FOR_SCORES) | set(AT_CHANCE) | set(PARAMETERS) < names
    assert {"anomaly.HalfSpaceTrees", "anomaly.QuantileFilter", "forest.ARFClassifier"} < names
    assert len(names) > 45


def test_half_space_trees_as_in_the_docs() -> None:
    """The scores are in standard deviations. Without limits, these trees detect nothing."""
    page = (Path(__file__).parents[1] / "docs" / "river.md").read_text()
    [limits] = re.findall(r"anomaly\.HalfSpaceTrees\(limits=(\{.*?\}), seed=1\)", page)
    rng = np.random.default_rng(3)
    found = []
    for given in ({"limits": ast.literal_eval(limits)}, {}):
        model, auc = (
            pca(n_components=1) | anomaly.HalfSpaceTrees(seed=1, **given),
            metrics.ROCAUC(500),
        )
        for i in range(2000):
            strange = i % 50 == 25
            load = 10.0 * rng.choice((-1, 1)) if strange else rng.standard_normal()
            row = np.array([load, load, 0.0, 0.0]) + rng.standard_normal(4) / 4
            record = dict(zip(FEATURES, row.tolist(), strict=True))
            if i >= 1000:
                auc.update(strange, model.score_one(record))
            model.learn_one(record)
        found.append(auc.get())
    assert found[0] > 0.9 and found[1] < 0.7, found


@pytest.mark.parametrize("detector", [SubspaceDistance, SubspaceT2])
def test_our_detectors_in_filters(detector: Any) -> None:
    """A filter must not protect the detector: a record would decide who takes a slot."""
    for filtered, given in (
        (anomaly.QuantileFilter, {"q": 0.9}),
        (anomaly.ThresholdFilter, {"threshold": 30.0}),
    ):
        model = pca(n_components=1)
        made = filtered(detector(model), protect_anomaly_detector=False, **given)
        assert made.score_one(RECORDS[0]) == 0.0
        for x in RECORDS:
            assert math.isfinite(made.score_one(x))
            made.learn_one(x)
            if filtered is anomaly.ThresholdFilter:  # it passes nothing on, unless it protects
                model.learn_one(x)
        assert model.n_seen == N
        for bad in BAD:
            assert made.score_one(bad) == 0.0
        far = dict(
            zip(
                FEATURES,
                (90.0, -90.0, 0.0, 0.0) if detector is SubspaceDistance else (90.0, 90.0, 0.0, 0.0),
                strict=True,
            )
        )
        assert made.classify(made.score_one(far)) and not made.classify(made.score_one(RECORDS[1]))

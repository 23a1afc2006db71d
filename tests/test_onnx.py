"""A model of ONNX computes the scores of `Projector`, whatever complete rows are."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest

from stream_dppca import DPPCA, DPPCAError, Projector
from stream_dppca.release import Limit

FEATURES = ("cpu", "memory", "disk", "fan", "idle")
RNG = np.random.default_rng(3)
KNOWN = Projector(
    FEATURES,
    np.linalg.qr(RNG.normal(size=(5, 2)))[0] * [[1], [1], [1], [1], [0]],
    center=np.array([50.0, 1e9, 0.0, -3.0, 1.0]),
    scale=np.array([10.0, 1e8, 1e-3, 2.0, 1.0]),
    clamp=np.array([5.0, 5.0, 3.0, np.inf, 5.0]),
    mean=np.array([0.1, -0.2, 0.0, 0.3, 0.0]),
    deviation=np.array([1.0, 0.9, 0.5, 1.1, 0.0]),  # the last one has no spread
    variance=np.array([1.5, 0.7]),
    limits={"spe": (Limit(rate=0.01, value=9.0, sd=0.1),)},
)


def rows() -> np.ndarray:
    """Ordinary rows, far ones, extreme ones, and rows with holes."""
    X = KNOWN.center + KNOWN.scale * RNG.normal(size=(600, 5)) * 10.0 ** RNG.integers(
        -1, 4, (600, 5)
    )
    X[:200][RNG.random((200, 5)) < 0.4] = np.nan
    X[200:220, 1] = [np.inf, -np.inf] * 10
    X[220:230] = np.nan
    X[230:240] = [[1e308, -1e308, 1e300, 1e155, 0]]
    return X


@pytest.mark.parametrize(
    "projector",
    [
        KNOWN,
        replace(KNOWN, variance=np.array([1.5, 0.0])),  # a component without variance
        replace(KNOWN, variance=np.array(np.nan)),  # not known: no T2
        replace(KNOWN, W=np.linalg.qr(RNG.normal(size=(5, 4)))[0], variance=np.ones(4)),  # no SPE
        Projector.plain(FEATURES, KNOWN.W, np.ones(5)),
    ],
)
def test_scores_are_those_of_the_projector(projector: Projector) -> None:
    session = onnxruntime.InferenceSession(projector.to_onnx())
    X = rows()
    scores, spe, t2 = session.run(["scores", "spe", "t2"], {"X": X})
    assert np.isnan(scores[220:230]).all() and np.isfinite(scores[230:240]).all()
    complete = projector.n_read(X) == np.count_nonzero(projector.deviation > 0)
    assert 0 < complete[:220].sum() < 200
    for found, expected in (
        (scores, projector.transform(X)),
        (spe, projector.spe(X)),
        (t2, projector.t2(X)),
    ):
        assert np.isnan(found[~complete]).all()  # it fills nothing in
        np.testing.assert_allclose(found[complete], expected[complete], rtol=1e-12, atol=1e-12)


def test_what_a_model_learned_is_exported_with_its_public_numbers() -> None:
    X = RNG.normal(size=(8000, 1)) + RNG.normal(size=(8000, 5))
    pca = DPPCA(features=FEATURES, epsilon=1.0, delta=1e-6, batch_size=4000, n_components=2)
    with pytest.raises(DPPCAError, match="nothing has been learned"):
        pca._projector().to_onnx()
    pca.learn_array(X)
    session = onnxruntime.InferenceSession(pca.projector().to_onnx())
    np.testing.assert_allclose(session.run(["spe"], {"X": X})[0], pca.spe(X), rtol=1e-12)
    told = onnxruntime.InferenceSession(KNOWN.to_onnx()).get_modelmeta().custom_metadata_map
    assert json.loads(told["features"]) == list(FEATURES)
    assert json.loads(told["limits"]) == {"spe": [{"rate": 0.01, "value": 9.0, "sd": 0.1}]}

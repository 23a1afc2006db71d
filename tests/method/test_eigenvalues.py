"""Eigenvalues of a release: those that stand out of the noise, and how far they are off."""

from __future__ import annotations

import numpy as np
import pytest

from stream_dppca import DPPCA, Release

D, B = 12, 2000


def released(seed: int, spikes: tuple[float, ...], batches: int = 4) -> tuple[Release, list[float]]:
    """A release, and the true eigenvalues of the correlation matrix."""
    rng = np.random.default_rng(5)
    basis = np.linalg.qr(rng.standard_normal((D, len(spikes))))[0]
    C = (basis * spikes) @ basis.T + np.eye(D)
    scale = np.sqrt(np.diag(C))
    X = np.random.default_rng(seed).multivariate_normal(np.zeros(D), C, size=batches * B)
    pca = DPPCA(
        features=tuple(range(D)), epsilon=2.0, delta=1e-6, batch_size=B, n_components=1, seed=seed
    )
    pca.learn_array(X)
    assert pca.last_release is not None
    return pca.last_release, np.linalg.eigvalsh(C / np.outer(scale, scale))[::-1].tolist()


def test_more_stand_out_than_there_are_components_and_most_are_within_two_sds() -> None:
    off = []
    for seed in range(20):
        release, true = released(seed, (12.0, 6.0))
        assert len(release.eigenvalues) >= 2
        assert sorted(release.eigenvalues, reverse=True) == list(release.eigenvalues)
        two = zip(release.eigenvalues[:2], true, release.eigenvalues_sd, strict=False)
        off += [(found - value) / sd for found, value, sd in two]
    assert np.mean(np.abs(off) < 2) > 0.8


def test_noise_alone_does_not_stand_out() -> None:
    """The rest is level: an eigenvalue far above 1 would be made of noise."""
    largest = [max(released(seed, ())[0].eigenvalues, default=0.0) for seed in range(10)]
    assert np.mean(largest) < 1.5


def test_as_many_eigenvalues_as_sds() -> None:
    release = released(0, (12.0,))[0].model_dump()
    with pytest.raises(ValueError, match="one sd for each of the eigenvalues"):
        Release.model_validate(release | {"eigenvalues_sd": ()})

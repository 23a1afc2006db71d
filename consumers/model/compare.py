"""Two releases side by side: what is different, against noise and sampling."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from stream_dppca import Projector, Release
from stream_dppca.arrays import FloatArray

from ..errors import ConfigurationError
from .uncertainty import angle, loading_noise, mean_noise

#: Differences of more than this many standard deviations are changes.
MORE = 3.0
#: Features whose changes are listed.
MOST = 8


def compare(a: Release, b: Release) -> str:
    """Several lines about the change from one release to another.

    What noise and sampling alone do is estimated for both releases, to first order. Two releases of
    one model share records and noise, so for them the estimate is on the high side.
    """
    if a.features != b.features:
        raise ConfigurationError("the two releases have other features: nothing can be compared")
    if not (a.components and b.components):
        raise ConfigurationError("a release without components cannot be compared")
    return "\n".join([*_angles(a, b), "", *_features(a, b), "", *_limits(a, b)])


def _angles(a: Release, b: Release) -> Iterator[str]:
    noises = [loading_noise(release) for release in (a, b)]
    for j in range(min(len(a.components), len(b.components))):
        v, w = np.array(a.components[j]), np.array(b.components[j])
        found = angle(v, w)
        against, more = _against(found, [None if noise is None else noise[j] for noise in noises])
        line = f"component {j}: {found:.2f}° apart{against}"
        ratios = [r.explained_variance_ratio for r in (a, b)]
        if all(ratios):
            line += "; explains " + " → ".join(f"{100 * r[j]:.1f} %" for r in ratios if r)
        yield line
        if more:
            w = np.copysign(1.0, v @ w) * w
            far = np.abs(w - v)
            most = [i for i in np.argsort(-far)[:3].tolist() if 5 * far[i] > far.max()]
            listed = (f"{a.features[i]} {v[i]:+.2f} → {w[i]:+.2f}" for i in most)
            yield f"  loadings that moved most: {', '.join(listed)}"
    V, W = (np.array(r.components) for r in (a, b))
    cosine = np.linalg.svd(V @ W.T, compute_uv=False).min(initial=1.0)
    found = math.degrees(math.acos(min(cosine, 1.0)))
    against, _ = _against(found, [loading_noise(release, together=True) for release in (a, b)])
    yield f"all components together: at most {found:.2f}° apart{against}"


def _against(found: float, noises: Sequence[FloatArray | None]) -> tuple[str, bool]:
    """An angle against what noise and sampling do to both sides, and whether it is a change.

    Nothing is said if that is not known.
    """
    own = [float(np.linalg.norm(noise)) for noise in noises if noise is not None]
    if len(own) < len(noises):
        return "", False
    floor = min(math.degrees(math.hypot(*own)), 90.0)
    more = found > MORE * floor
    than = "more than" if more else "within"
    return f", noise and sampling alone about {floor:.2f}°: {than} {MORE:g} times that", more


def _features(a: Release, b: Release) -> Iterator[str]:
    """Means and standard deviations of the features, the largest changes first."""
    P, Q = Projector.from_release(a), Projector.from_release(b)
    means = [p.center + p.scale * p.mean for p in (P, Q)]
    sds = [p.scale * p.deviation for p in (P, Q)]
    with np.errstate(all="ignore"):
        moved = np.nan_to_num((means[1] - means[0]) / sds[0], posinf=0.0, neginf=0.0)
        grown = np.nan_to_num(sds[1] / sds[0], nan=1.0, posinf=1.0)
        size = np.abs(moved) + np.abs(np.log(np.maximum(grown, 1e-9)))
    width = max(len(str(name)) for name in a.features)
    yield f"{'':<{width}}  {'mean moved by':>16}  sd times"
    for i in np.argsort(-size)[:MOST].tolist():
        yield f"{a.features[i]!s:<{width}}  {moved[i]:>+13.2f} sd  {grown[i]:8.3g}"
    if a.mean is not None and b.mean is not None:
        noise = 2 * math.hypot(mean_noise(a), mean_noise(b))
        yield f"noise and sampling alone move a mean by about ± {noise:.2g} sd"


def _limits(a: Release, b: Release) -> Iterator[str]:
    for score, limits in b.limits.items():
        before = {limit.rate: limit for limit in a.limits.get(score, ())}
        for limit in limits:
            if (old := before.get(limit.rate)) is None:
                continue
            far = abs(limit.value - old.value) / max(math.hypot(limit.sd, old.sd), 1e-12)
            more = f"{'more than' if far > MORE else 'within'} {MORE:g} times the uncertainty"
            yield (
                f"{score}, {100 * limit.rate:g} % of the records exceed: {old.value:.4g} → "
                f"{limit.value:.4g} ({more})"
            )
    if not (a.limits and b.limits):
        yield "limits: not in both releases"

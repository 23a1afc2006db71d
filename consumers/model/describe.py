"""A release as text for people: its status, labelled loadings, raw units, and the promise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from stream_dppca import PrivacyStatement, Release, SubjectStatement
from stream_dppca.outcome import FEW_PLACES, FEW_SUBJECTS
from stream_dppca.wording import over_in_words

from .releases import PublishedRelease
from .uncertainty import loading_noise

#: Advice whenever nothing was learned: wrong names are nearly always the reason.
CHECK_NAMES = "check the feature names"

WIDTH = 24


def learned_nothing(status: str) -> bool:
    """Tell whether a batch taught the model nothing, as far as a noisy release can show."""
    return status in ("nothing_learned", "skipped")


def status_in_words(release: Release) -> str:
    """Return the status in words; empty if all is well."""
    if release.status == "starting":
        if release.components:
            return "the stream has changed: centre and scales are asked for again"
        unit = "batch" if release.subjects is None else "round"
        last = max(release.batch, release.first_batches)  # questions may have been asked anew
        return f"starting: {unit} {release.batch} of {last} that ask for centre and scales only"
    advice = "" if release.reason in (FEW_PLACES, FEW_SUBJECTS) else f"; {CHECK_NAMES}"
    if release.status == "nothing_learned":
        return f"nothing learned yet: {release.reason}{advice}"
    if release.status == "skipped":
        return f"nothing was learned from this batch: {release.reason}{advice}"
    if not release.drift:
        return ""
    what = "the mean of the stream has shifted" if release.shift else "the stream has changed"
    return f"{what}: what was learned before was dropped"


def describe(release: PublishedRelease, top: int = 0) -> str:
    """Several lines, without colour; of each component the `top` largest loadings, or all."""
    lines = [
        f"model {release.model}, {number(release)}, {extent(release)}",
        promise_in_words(release.privacy),
    ]
    lines += [words for words in (status_in_words(release), meaning(release)) if words]
    for j in range(len(release.components)):
        lines += ["", f"component {j}{_facts(release, j)}"]
        lines += _table(release, j, top)
    return "\n".join([*lines, *_spectrum(release)])


def _spectrum(release: Release) -> Iterator[str]:
    """Eigenvalues that stand out of the noise, and limits of scores, with their uncertainty."""
    if release.eigenvalues:
        known = zip(release.eigenvalues, release.eigenvalues_sd, strict=True)
        listed = ", ".join(f"{value:.3g} ± {2 * sd:.2g}" for value, sd in known)
        yield f"\neigenvalues that stand out of the noise: {listed}"
    for score, limits in release.limits.items():
        listed = ", ".join(
            f"{100 * at.rate:g} % of the records exceed {at.value:.3g} ± {2 * at.sd:.2g}"
            for at in limits
        )
        yield f"limits of {score}: {listed}"
    if release.components and not release.limits:
        yield "limits: none is known yet"


def promise_in_words(p: PrivacyStatement | SubjectStatement) -> str:
    """Return the privacy statement in a sentence.

    Examples
    --------
    >>> p = PrivacyStatement(epsilon=1, delta=1e-6, method="adaptive", private=True)
    >>> promise_in_words(p)
    'Replacing any one record changes the probability of any component shown here by at most a \
factor of 2.72 (ε = 1) plus 1e-06 (δ), over the whole stream.'
    """
    if not p.private:
        return "Not private: the noise came from a seed, so nobody is protected."
    if isinstance(p, SubjectStatement):
        longer = over_in_words(p.epsilon_over)
        return (
            f"Everything shown is (ε = {p.epsilon:g}, δ = {p.delta:g})-differentially private for "
            f"everything that one subject (by {p.subject}) sends in {p.scope}; "
            f"ε over longer times: {longer}."
        )
    factor = f"{math.exp(min(p.epsilon, 500.0)):.3g}"
    return (
        f"Replacing any one record changes the probability of any component shown here by at most "
        f"a factor of {factor} (ε = {p.epsilon:g}) plus {p.delta:g} (δ), over the whole stream."
    )


def number(release: PublishedRelease) -> str:
    """The number of a release, in words."""
    return f"{'batch' if release.round is None else 'round'} {release.batch:,}"


def extent(release: PublishedRelease) -> str:
    """Extent of a release. With privacy per subject the number of records is secret."""
    if release.round is None:
        return f"{release.n_seen:,} records"
    about = "" if release.subjects is None else f"about {max(release.subjects, 0):,.0f} subjects, "
    return f"{about}to {release.round.end}"


def summary(release: PublishedRelease) -> str:
    """One line, with the three largest loadings."""
    line = f"{number(release):<12}  {extent(release)}"
    words = status_in_words(release)
    if not release.components:
        return f"{line}  {words}"
    if release.explained_variance_ratio is not None:
        line += f"  explains {min(1.0, max(0.0, release.explained_variance_ratio[0])):4.0%}"
    weights = release.components[0]
    largest = (f"{release.features[i]} {weights[i]:+.2f}" for i in _order(weights)[:3])
    return f"{line}  {', '.join(largest)}" + (f"  ({words})" if words else "")


def meaning(release: Release) -> str:
    """Return the meaning of the main component in one sentence; empty if nothing is known yet.

    The sentence names the features with the largest loadings, at most four of them.
    """
    if not release.components:
        return ""
    raw, weights = raw_units(release, 0), release.components[0]
    largest = max(weights, key=abs)
    order = [i for i in _order(weights) if abs(weights[i]) > 0.5 * abs(largest)][:4]

    def listed(sign: int) -> list[str]:
        return [
            f"{release.features[i]} (±{_rounded(abs(raw[i][0]))} around {_rounded(raw[i][1])})"
            if raw
            else f"{release.features[i]}"
            for i in order
            if weights[i] * largest * sign > 0
        ]

    ratio = release.explained_variance_ratio
    share = "" if ratio is None else f", {100 * ratio[0]:.0f} % of all variation"
    together, opposite = listed(1), listed(-1)
    several = len(together) > 1
    what = ", ".join(together) + (" rise and fall together" if several else "")
    if opposite:
        when = "when they rise" if several else "when it rises"
        verb = "fall" if len(opposite) > 1 else "falls"
        what += f"; {when}, {', '.join(opposite)} {verb}"
    return f"What varies most{share}: {what}."


def _rounded(value: float) -> str:
    """Return a number with three significant digits.

    >>> [_rounded(x) for x in (0.01234, 45.67, 81234567.0, 1.5e20)]
    ['0.0123', '45.7', '81,200,000', '1.5e+20']
    """
    value = float(f"{value:.3g}")
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e12 else f"{value:g}"


def _facts(release: Release, j: int) -> str:
    ratio, sd = release.explained_variance_ratio, release.explained_variance_ratio_sd
    if ratio is not None:
        about = "" if sd is None else f" ± {200 * sd[j]:.1f} %"
        return f", explains {100 * ratio[j]:.1f} %{about} of the variance"
    return "" if release.spread is None else f", spread {release.spread[j]:.4g}"


def _order(weights: Sequence[float]) -> list[int]:
    """The features with the largest weights first."""
    return sorted(range(len(weights)), key=lambda i: -abs(weights[i]))


def _table(release: PublishedRelease, j: int, top: int) -> Iterator[str]:
    """Loadings, the largest first; next to them their errors and the raw features, if known."""
    raw, weights, noise = raw_units(release, j), release.components[j], loading_noise(release)
    width = max(map(len, release.features))
    sds = "" if noise is None else "         "
    if raw:
        yield f"  {'':<{width}}  loading{sds}  {'typical change':>14}  {'around':>10}"
    for i in _order(weights)[: top or None]:
        sd = "" if noise is None else f" ± {2 * noise[j, i]:.4f}"
        change = f"  {raw[i][0]:>+z14.4g}  {raw[i][1]:>10.4g}" if raw else ""
        bar = "█" * round(abs(weights[i]) * WIDTH)
        yield f"  {release.features[i]:<{width}}  {weights[i]:+z.4f}{sd}{change}  {bar}".rstrip()
    if top and top < len(weights):
        yield f"  … and {len(weights) - top:,} smaller ones"


def raw_units(release: Release, j: int) -> list[tuple[float, float]]:
    """Change of each raw feature if score j grows by one standard deviation, and its mean.

    Empty if these are not known.
    """
    c, s, m, r = release.center, release.scale, release.mean, release.deviation
    if c is None or s is None or m is None or r is None:
        return []
    sd = math.sqrt(max(1.0 if release.spread is None else release.spread[j], 0.0))
    return [
        (scale * deviation * weight * sd, center + scale * mean)
        for center, scale, mean, deviation, weight in zip(
            c, s, m, r, release.components[j], strict=True
        )
    ]

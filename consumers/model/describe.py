"""A release as text for people: labelled loadings, the largest first, and what is promised."""

from __future__ import annotations

from collections.abc import Iterable

from ..protocols import Message
from .releases import PublishedRelease, parse_release

__all__ = ["current_release", "describe"]

WIDTH = 24


def current_release(
    messages: Iterable[Message], model: str, task: str | None
) -> PublishedRelease | None:
    """The newest release of a model: of the task asked for, or the merged one, or the first.

    A model with one task needs no merged release. If somebody made one, it is not kept up.
    """
    newest: dict[str, PublishedRelease] = {}
    for message in messages:
        try:
            release = parse_release(message.value)
        except ValueError:
            continue
        if release.model == model:
            known = newest.get(str(release.task))
            if known is None or release.batch >= known.batch:
                newest[str(release.task)] = release
    if task is not None:
        return newest.get(task)
    merged = newest.pop("merged", None)
    if merged is not None and all(release.shards > 1 for release in newest.values()):
        return merged
    return newest.get(min(newest, default=""))


def describe(release: PublishedRelease, top: int = 0) -> str:
    """Several lines, without colour."""
    p = release.privacy
    lines = [
        f"model {release.model}, task {release.task} of {release.shards}, batch {release.batch}, "
        f"{release.n_seen} slots",
        f"({p.epsilon:g}, {p.delta:g})-differentially private, {p.adjacency} {p.unit}, {p.scope}"
        if p.private
        else "NOT PRIVATE: made with a seed",
    ]
    if release.skipped:
        lines.append(f"nothing was learned from this batch: {release.reason}")
    for j, component in enumerate(release.components):
        spread = "" if component.spread is None else f", spread {component.spread:.4g}"
        lines += ["", f"component {j}{spread}"]
        loadings = sorted(component.loadings.items(), key=lambda item: -abs(item[1]))
        name_width = max(len(name) for name in component.loadings)
        for name, weight in loadings[: top or None]:
            bar = "█" * round(abs(weight) * WIDTH)
            lines.append(f"  {name:<{name_width}}  {weight:+.4f}  {bar}")
    return "\n".join(lines)

"""Names of features as paths into a message, and as a tree of them."""

from __future__ import annotations

from collections.abc import Sequence

from stream_dppca.paths import path_of

from ..errors import ConfigurationError

#: Positions of the features: a name leads to the number of a feature, or to the names below it.
FeatureTree = dict[str, "int | FeatureTree"]


class Id(int):
    """The number of a feature that is an id: a text is as good as a number."""


def feature_tree(
    features: Sequence[str], nested: bool = True, with_id: bool = False
) -> FeatureTree:
    """Return the tree of the names of the features, of which the last may be an id.

    Examples
    --------
    >>> feature_tree(["cpu", "disk.read", "disk.write", "v[1]"])
    {'cpu': 0, 'disk': {'read': 1, 'write': 2}, 'v': {'[1]': 3}}
    """
    tree: FeatureTree = {}
    for number, feature in enumerate(features):
        *above, last = path = path_of(feature, nested)
        if not all(path):
            raise ConfigurationError(f"feature {feature!r} has an empty part between its dots")
        branch: int | FeatureTree = tree
        for name in above:
            branch = branch.setdefault(name, {}) if isinstance(branch, dict) else branch
        if not isinstance(branch, dict) or last in branch:
            raise ConfigurationError(
                f"feature {feature!r} is there twice, or would be a number and hold another "
                "feature: set nested=false"
            )
        branch[last] = Id(number) if with_id and number == len(features) - 1 else number
    return tree


def items_of(tree: FeatureTree) -> dict[int, int] | None:
    """The features that are items of an array, by their positions; None if it is no array."""
    if not all(name[0] == "[" for name in tree):
        return None
    return {int(name[1:-1]): at for name, at in tree.items() if isinstance(at, int)}

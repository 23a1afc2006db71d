"""Tests of one group run in one process, so that they share a broker or a browser."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("a-group")
def test_groups_are_respected(request: pytest.FixtureRequest) -> None:
    """pytest 9.2 ignores them silently, if pytest-xdist is not newer than 3.8."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("this process does not run with --dist loadgroup")
    assert request.node.nodeid.endswith("@a-group")

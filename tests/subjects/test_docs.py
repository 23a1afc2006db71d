"""The examples of docs/subjects.md run as written, and its figures are those of the code."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from stream_dppca import plan_subjects
from stream_dppca.calibration import epsilon_of_periods, gaussian_epsilon, gaussian_mu

PAGE = Path(__file__).parents[2] / "docs" / "subjects.md"


def test_the_examples_run() -> None:
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    found = doctest.testfile(str(PAGE), module_relative=False, optionflags=flags)
    assert found.attempted > 10 and not found.failed


def test_the_figures_on_the_page() -> None:
    text = PAGE.read_text()
    for days, said in ((7, "2.89"), (30, "6.58"), (365, "31.0")):
        digits = len(said.split(".")[1])
        assert f"{epsilon_of_periods(1.0, 1e-6, days):.{digits}f}" == said and said in text
    mu = gaussian_mu(1.0, 1e-6)
    for devices, said in ((2, "2.12"), (3, "3.32")):  # of one person, in the same rounds
        assert f"{gaussian_epsilon(mu * devices, 1e-6):.2f}" == said and said in text
    for rounds, more in ((1, 1.455), (24, 1.02)):  # one round more
        over = gaussian_epsilon(mu * ((rounds + 1) / rounds) ** 0.5, 1e-6)
        assert over == pytest.approx(more, abs=0.006) and f"{more}" in text
    for d, subjects, said in ((10, 550, "544"), (50, 4000, "3712"), (200, 27_000, "25,856")):
        guess = {"d": d, "epsilon": 1.0, "delta": 1e-6, "subjects": subjects}
        (first, needed), *_ = plan_subjects(**guess, center="none", scales=None).subjects_needed
        assert first == 1 and str(needed) == said.replace(",", "")
        assert said in text
    assert plan_subjects(d=10, epsilon=1.0, delta=1e-6, subjects=550).question_rounds == 3
    assert '"components from round 4 on"' in text

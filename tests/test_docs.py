"""Pages of the site begin with what readers can do after them, and a search finds headings."""

from __future__ import annotations

import re

import pytest

from .support.processes import ROOT

DOCS = ROOT / "docs"
PAGES = re.findall(r"([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)


def test_the_navigation_has_pages() -> None:
    assert {"index.md", "service.md", "architecture.md"} <= set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_begins_with_what_its_reader_can_do_after_it(page: str) -> None:
    """In its first paragraph; that of the home page is in front of its table."""
    _, _, first, *_ = re.split(r"^(#+ .*)\n+", (DOCS / page).read_text(), maxsplit=1, flags=re.M)
    paragraph = " ".join(first.split("\n\n")[0].split())
    assert re.match(r"After (this page|the overview above) you (can|know) ", paragraph), paragraph
    assert paragraph.endswith((".", ":"))


@pytest.mark.parametrize("word", ["threshold", "OpenTelemetry", "Helm", "scikit-learn"])
def test_a_heading_has_what_people_search_for(word: str) -> None:
    titles = [(DOCS / page).read_text().split("\n", 1)[0] for page in PAGES]
    assert any(title.startswith("# ") and word in title for title in titles)


def test_the_readme_is_read_in_minutes() -> None:
    """At most 900 words, those of code and tables included."""
    text = re.sub(r"<!--.*?-->|\||---", " ", (ROOT / "README.md").read_text())
    assert len(text.split()) <= 900

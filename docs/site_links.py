"""The README is the home page, and links into the repository become text: a site has none.

A link that leads nowhere is a warning, and with `mkdocs build --strict` an error.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)")
_LINK_OF_README = re.compile(r"\]\((?!https?:|#)([^)\s]+)\)")
_logger = logging.getLogger("mkdocs.plugins.site_links")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Turn links to files outside the docs into their text, and check that these exist."""
    folder = Path(config["docs_dir"])
    if page.file.src_uri == "index.md":
        readme = (folder.parent / "README.md").read_text(encoding="utf-8")
        markdown = _LINK_OF_README.sub(r"](../\1)", readme).replace("](../docs/", "](") + markdown

    def as_text(link: re.Match[str]) -> str:
        target = (folder / page.file.src_uri).parent / link[2]
        if not target.exists():
            _logger.warning("%s links to %s, which does not exist", page.file.src_uri, link[2])
        return f"{link[1]} (`{link[2].lstrip('./')}` in the repository)"

    return _LINK.sub(as_text, markdown)

"""`python -m docs.settings_table` writes the settings into the docs and the chart."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from consumers.cli.flags import default_text
from consumers.settings import PARTS, Settings

DOCS_FILE: Final = Path(__file__).with_name("service-reference.md")
CHART_FILE: Final = Path(__file__).parents[1] / "docker" / "helm" / "values.schema.json"
#: Settings that the chart takes as secrets, besides those that are secret by their type.
_CREDENTIALS: Final = {"sasl_username", "schema_registry_username"}
#: Settings that the chart does not take: its probes rely on two, and the last is many variables.
_LEFT_OUT: Final = {"http_host", "http_port", "spark_conf"}
BEGIN: Final = "<!-- settings: begin; written by `make docs` -->"
END: Final = "<!-- settings: end -->"


def _lines() -> Iterator[str]:
    """Yield the lines of a Markdown table of every part of the settings."""
    for title, part in PARTS.items():
        yield from (f"### {title}", "", "| setting | default | meaning |", "|---|---|---|")
        for name, field in part.model_fields.items():
            shown = "**required**" if field.is_required() else default_text(field)
            default = f"`{shown}`" if shown and not field.is_required() else shown
            yield f"| `{name}` | {default} | {_escaped(field.description or '')} |"
        yield ""


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|").replace("<", "&lt;")


def with_tables(page: str) -> str:
    """Return a page with the current tables between its two marks."""
    tables = "\n".join([BEGIN, "", *_lines(), END])
    found, count = re.subn(
        f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: tables, page, flags=re.DOTALL
    )
    if count != 1:
        raise ValueError(f"the page must have {BEGIN} and {END} once. Found {count}.")
    return found


def with_names(schema: str) -> str:
    """Return the schema of the chart's values with the current names of settings and secrets."""
    found = json.loads(schema)
    fields = Settings.model_fields.items()
    secret = {name for name, field in fields if "SecretStr" in str(field.annotation)}
    for key, names in (
        ("settings", Settings.model_fields.keys() - secret),
        ("secrets", secret | _CREDENTIALS),
    ):
        found["properties"][key]["propertyNames"]["enum"] = sorted(names - _LEFT_OUT)
    return json.dumps(found, indent=1) + "\n"


if __name__ == "__main__":
    CHART_FILE.write_text(with_names(CHART_FILE.read_text(encoding="utf-8")), encoding="utf-8")
    DOCS_FILE.write_text(with_tables(DOCS_FILE.read_text(encoding="utf-8")), encoding="utf-8")

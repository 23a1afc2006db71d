"""The rules for Prometheus and the dashboard for Grafana: they are valid, and name what exists."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from consumers.monitoring.http import HttpServer
from consumers.monitoring.metrics import Metrics
from consumers.scoring.status import ScoreStatus

from ..browser.conftest import REQUIRE_VARIABLE
from ..support.processes import ROOT, wait_for
from .test_service import Page

FOLDER = ROOT / "docker" / "monitoring"
RULES, TESTS, DASHBOARD = (
    FOLDER / name for name in ("alerts.yaml", "alerts_test.yaml", "dashboard.json")
)


def program(name: str) -> str:
    """The path of a program of Prometheus; without it the test is skipped, or fails where skips are
    not allowed."""
    found = shutil.which(name)
    if found is None:
        reason = f"there is no {name} (docker/ensure-browser.sh installs it)"
        if os.environ.get(REQUIRE_VARIABLE, "") not in ("", "0"):
            pytest.fail(f"{REQUIRE_VARIABLE} is set, but {reason}", pytrace=False)
        pytest.skip(reason)
    return found


def exported() -> set[str]:
    """The names of the metrics of the service and of `score` in queries."""
    suffixes = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",)}
    rendered = Metrics().render() + ScoreStatus().render()
    return {
        f"{family.name}{suffix}"
        for family in text_string_to_metric_families(rendered.decode())
        for suffix in suffixes.get(family.type, ("",))
    }


def named(text: str) -> set[str]:
    return set(re.findall(r"\bdppca_[a-z_]+", text))


def expressions() -> list[str]:
    return [
        target["expr"]
        for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
        for target in panel.get("targets", ())
    ]


def test_every_metric_that_is_named_exists() -> None:
    rules = "\n".join(
        line for line in RULES.read_text(encoding="utf-8").splitlines() if "description" not in line
    )
    assert len(named(rules)) >= 7 and named(rules) <= exported()
    shown = named(DASHBOARD.read_text(encoding="utf-8"))
    assert shown <= exported()
    # Nothing that the service counts is left out of the dashboard.
    assert shown == {name for name in exported() if not re.search("_(sum|count)$", name)}


def test_the_dashboard_is_one() -> None:
    board: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers) == 18
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert all(panel["title"] and panel["description"] for panel in panels)
    places = {(p["gridPos"]["x"], p["gridPos"]["y"]) for p in board["panels"]}
    assert len(places) == len(numbers)


def test_the_rules_are_valid_and_fire_when_they_should() -> None:
    promtool = program("promtool")
    for arguments in (["check", "rules", str(RULES)], ["test", "rules", str(TESTS)]):
        done = subprocess.run([promtool, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    tested = set(re.findall(r"alertname: (\w+)", TESTS.read_text(encoding="utf-8")))
    assert tested == set(re.findall(r"- alert: (\w+)", RULES.read_text(encoding="utf-8")))


@pytest.mark.slow
def test_a_real_prometheus_takes_rules_dashboard_and_metrics(tmp_path: Path) -> None:
    """It scrapes the service's own port, with its token, and answers every query of the dashboard
    without an error."""
    token = "sixteen or more letters"  # noqa: S105
    metrics = Metrics()
    server = HttpServer("127.0.0.1", 0, Page(), metrics, token=token)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = tmp_path / "prometheus.yml"
    config.write_text(f"""
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{RULES}]
scrape_configs:
  - job_name: m
    authorization: {{credentials: "{token}"}}
    static_configs: [{{targets: ["127.0.0.1:{server.port}"]}}]
""")
    process = subprocess.Popen(
        [
            program("prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={tmp_path}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def ask(path: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}") as answer:
                return json.loads(answer.read())["data"]
        except OSError:
            return None

    def value(expression: str) -> Any:
        found = ask("query?query=" + urllib.request.quote(expression))  # type: ignore[attr-defined]
        return None if found is None else found["result"]

    try:
        wait_for("a scrape", lambda: value("dppca_owner"))
        groups = ask("rules")["groups"]
        assert [group["name"] for group in groups] == ["stream-dppca"]
        wait_for(
            "an evaluation",
            lambda: all(rule["health"] == "ok" for rule in ask("rules")["groups"][0]["rules"]),
        )
        for expression in expressions():
            assert value(expression.replace("$job", ".+")) is not None, expression
    finally:
        process.terminate()
        process.wait()
        server.close()

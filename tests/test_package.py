"""One version, pins that follow from the dependencies, manifests with settings that exist."""

from __future__ import annotations

import importlib
import itertools
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from consumers.cli.exits import EXIT_CONFIGURATION
from consumers.errors import ConfigurationError
from consumers.settings import load_settings
from demo.telemetry import FEATURES
from stream_dppca import __version__

from .support.processes import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MANIFESTS = ("docker/kubernetes.yaml", "docker/kubernetes-check.yaml")
OLDEST_KUBERNETES = "1.25"
#: Extras of the image, as `make lock` has them.
EXTRAS = ("service", "avro", "protobuf")


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((ROOT / name).read_text()))


def test_one_version() -> None:
    assert PROJECT["project"]["dynamic"] == ["version"] and "version" not in PROJECT["project"]
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()
    chart = yaml.safe_load((ROOT / "docker/helm/Chart.yaml").read_text())
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert chart["version"] == chart["appVersion"] == citation["version"] == __version__
    for name in (*MANIFESTS, "docker/Dockerfile"):
        found = re.findall(r"(?:stream-dppca:|VERSION=)(\d[\w.]*)", (ROOT / name).read_text())
        assert set(found) == {__version__}, name


def test_one_address() -> None:
    chart = yaml.safe_load((ROOT / "docker/helm/Chart.yaml").read_text())
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    urls = PROJECT["project"]["urls"]
    assert urls["Source"] == chart["home"] == citation["repository-code"]
    assert all(url.startswith(urls["Source"]) for url in urls.values())


@pytest.mark.parametrize("shape", ["consumers/__init__.py", "consumers.py"])
def test_another_package_of_the_same_name(tmp_path: Path, shape: str) -> None:
    """Python finds it first: the command says so, and where it is."""
    other = tmp_path / shape
    other.parent.mkdir(exist_ok=True)
    other.write_text("")
    command = [sys.executable, "-m", "stream_dppca_command", "--version"]
    for path, code in ((tmp_path, EXIT_CONFIGURATION), (ROOT, 0)):
        environment = {**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{ROOT}"}
        done = subprocess.run(
            command, env=environment, cwd=tmp_path / "..", capture_output=True, text=True
        )
        assert done.returncode == code
        assert (str(other) in done.stderr) == bool(code)
    module, _, name = PROJECT["project"]["scripts"]["stream-dppca"].partition(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_the_image_is_pinned_and_has_all_that_it_needs() -> None:
    lines = (ROOT / "docker/requirements.txt").read_text().splitlines()
    pins = dict(
        re.match(r"([\w.-]+)(?:\[.*\])?==(\S+)", line).groups()  # type: ignore[union-attr]
        for line in lines
        if re.match(r"[\w.-]+(\[.*\])?==", line)
    )
    assert all(line.startswith(("#", "    ")) or "==" in line for line in lines)
    hashes = [line for line in lines if line.startswith("    --hash=sha256:")]
    assert len(hashes) >= len(pins) > 20
    extras = PROJECT["project"]["optional-dependencies"]
    for text in [*PROJECT["project"]["dependencies"], *(r for e in EXTRAS for r in extras[e])]:
        needed = Requirement(text)
        assert needed.specifier.contains(pins[canonicalize_name(needed.name)]), text
    makefile = (ROOT / "Makefile").read_text()
    assert all(f"--extra {extra}" in makefile for extra in EXTRAS)


def test_make_help_lists_the_targets() -> None:
    outer = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")  # this may run in a `make test`
    env = {name: value for name, value in os.environ.items() if name not in outer}
    listed = subprocess.run(
        ["make", "help"], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )
    names = [line.split()[0] for line in listed.stdout.splitlines()]
    declared = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert declared is not None and set(names) == set(declared[1].split())


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {document["kind"]: document for document in documents(name)}
    pod = (kinds.get("Deployment") or kinds["Job"])["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    given = {entry["name"]: entry["value"] for entry in container["env"]}
    if "Job" in kinds:
        assert container["args"] == ["check-config"]
        service = {kind["kind"]: kind for kind in documents(MANIFESTS[0])}["Deployment"]
        [other] = service["spec"]["template"]["spec"]["containers"]
        assert container["env"] == other["env"], "the check is of the service's settings"
        return
    settings = {**given, **kinds["Secret"]["stringData"]}
    del settings["DPPCA_SSL_CAFILE"]  # of the pod
    for variable, value in settings.items():
        assert isinstance(value, str), "Kubernetes wants text"
        monkeypatch.setenv(variable, value)
    loaded = load_settings()
    assert {variable.removeprefix("DPPCA_").lower() for variable in settings} <= set(loaded.shown())
    assert kinds["Deployment"]["spec"]["replicas"] == 2
    # The image listens at all addresses. Then subjects need a token, which the manifest sets.
    everywhere = "0.0.0.0"  # noqa: S104
    by_subject = {"SUBJECT": "@key", "ROUND": "1h", "PLACES": "10000"}
    for name, value in {"HTTP_HOST": everywhere, **by_subject}.items():
        monkeypatch.setenv(f"DPPCA_{name}", value)
    monkeypatch.delenv("DPPCA_BATCH_SIZE")
    assert load_settings().unit == "subject"
    monkeypatch.delenv("DPPCA_HTTP_TOKEN")
    with pytest.raises(ConfigurationError, match="`http_token` must be set"):
        load_settings()
    policy, labels = kinds["NetworkPolicy"]["spec"], kinds["Deployment"]["spec"]["selector"]
    assert policy["podSelector"]["matchLabels"].items() <= labels["matchLabels"].items()
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    [allowed] = policy["ingress"]
    assert [p["port"] for p in allowed["ports"]] == [p["containerPort"] for p in container["ports"]]
    ports = {p["port"] for rule in policy["egress"] for p in rule["ports"]}
    brokers = {int(server.rpartition(":")[2]) for server in loaded.servers()}
    assert ports == {53, *brokers}


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests_have_the_schemas_of_kubernetes(name: str) -> None:
    """An old version and the newest that is known; a field that no schema has is refused, too."""
    versions = (OLDEST_KUBERNETES, kubernetes_validate.latest_version())
    for document, version in itertools.product(documents(name), versions):
        assert kubernetes_validate.validate(document, version, strict=True)
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate({**document, "speck": {}}, version, strict=True)


def test_the_composed_service_reads_what_the_generator_sends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name that nobody sends would make every record a null, and nothing would be learned."""
    (compose,) = documents("docker/compose.yaml")
    services = compose["services"]
    for variable, value in services["service"]["environment"].items():
        monkeypatch.setenv(variable, value)
    loaded = load_settings()
    assert loaded.features == FEATURES
    for name in ("topic", "generator"):
        command = services[name]["command"]
        assert command[command.index("--topic") + 1] == loaded.input_topic
        assert command[command.index("--bootstrap-servers") + 1] == loaded.bootstrap_servers
        # The image does not hold the simulation, so its folder is mounted.
        [mount] = services[name]["volumes"]
        source, target, _ = mount.split(":")
        assert (ROOT / "docker" / source).resolve() == ROOT / "demo"
        assert target == services[name]["working_dir"] + "/demo"
        assert services[name]["entrypoint"] == ["python", "-m", "demo.generator"]
    assert loaded.format == "json"


def test_every_page_of_the_docs_is_on_the_site_and_in_the_index() -> None:
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    site = (ROOT / "mkdocs.yml").read_text()
    navigation, excluded = site.split("exclude_docs:")
    pages -= set(re.findall(r"[\w-]+\.md", excluded))
    index = (ROOT / "docs" / "index.md").read_text()
    for page in pages:
        assert page in navigation
        assert page == "index.md" or f"({page})" in index


def test_links_of_pages_outside_the_docs() -> None:
    """Those of the docs are checked by `make site`."""
    names = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "examples/README.md")
    for name in names:
        page = ROOT / name
        for link in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text()):
            assert (page.parent / Path(link)).exists(), f"{name}: {link}"

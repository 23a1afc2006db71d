"""The Helm chart: real Helm, the schemas of Kubernetes, and those of the Prometheus operator."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from consumers.settings import load_settings

from .support.processes import ROOT
from .test_package import OLDEST_KUBERNETES

CHART = ROOT / "docker" / "helm"
REQUIRE_VARIABLE = "STREAM_DPPCA_REQUIRE_HELM"
#: The operator whose definitions of its kinds are taken from its Go module.
OPERATOR = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
EVERYTHING = {
    "score": {"enabled": True, "args": ["--scores-topic", "scores"]},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True},
}


@pytest.fixture(scope="module")
def helm() -> str:
    optional = os.environ.get(REQUIRE_VARIABLE, "") in ("", "0")
    command = [str(ROOT / "docker" / "ensure-helm.sh"), *(["--built"] if optional else [])]
    done = subprocess.run(command, check=not optional, capture_output=True, text=True)
    if done.returncode or shutil.which("go") is None:
        pytest.skip("there is no Helm (docker/ensure-helm.sh builds it), or no go command")
    return done.stdout.strip()


def rendered(helm: str, values: dict[str, Any], *flags: str) -> subprocess.CompletedProcess[str]:
    command = [helm, "template", "fleet", str(CHART), "--kube-version", OLDEST_KUBERNETES, *flags]
    return subprocess.run(
        [*command, "--values", "-"], input=json.dumps(values), capture_output=True, text=True
    )


def objects(helm: str, values: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    done = rendered(helm, values, "--values", str(CHART / "example.yaml"))
    assert done.returncode == 0, done.stderr
    found = [document for document in yaml.safe_load_all(done.stdout) if document]
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


@functools.cache
def definition(kind: str) -> dict[str, Any]:
    """The schema of a kind of the Prometheus operator, with fields that it lacks refused."""
    command = ["go", "mod", "download", "-json", OPERATOR]
    module = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    name = f"monitoring.coreos.com_{kind.lower()}s.yaml"
    text = (Path(module["Dir"]) / "example" / "prometheus-operator-crd" / name).read_text()
    [version] = yaml.safe_load(text)["spec"]["versions"]
    return closed(version["schema"]["openAPIV3Schema"])  # type: ignore[no-any-return]


def closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    more = {"additionalProperties": False} if isinstance(schema.get("properties"), dict) else {}
    return {**{key: closed(value) for key, value in schema.items()}, **more}


def test_the_plain_manifests_are_what_the_chart_makes(helm: str, tmp_path: Path) -> None:
    subprocess.run([str(ROOT / "docker" / "manifests.sh"), str(tmp_path)], check=True)
    for name in ("kubernetes.yaml", "kubernetes-check.yaml"):
        committed = (ROOT / "docker" / name).read_text()
        assert committed == (tmp_path / name).read_text(), "run docker/manifests.sh"


def test_everything_has_the_schemas_of_its_kind(helm: str) -> None:
    lint = [helm, "lint", "--strict", str(CHART), "--values", str(CHART / "example.yaml")]
    subprocess.run([*lint, "--kube-version", OLDEST_KUBERNETES], check=True, capture_output=True)
    found = objects(helm, EVERYTHING)
    kinds = {"Service", "Secret", "Job", "NetworkPolicy", "PodDisruptionBudget", "Deployment"}
    assert {kind for kind, _ in found} == kinds | {"ServiceMonitor", "PrometheusRule"}
    for (kind, _), document in found.items():
        if kind in kinds:
            for version in (OLDEST_KUBERNETES, kubernetes_validate.latest_version()):
                assert kubernetes_validate.validate(document, version, strict=True)
            continue
        checker = jsonschema.Draft202012Validator(definition(kind) | {"additionalProperties": True})
        checker.validate(document)
        with pytest.raises(jsonschema.ValidationError):
            checker.validate({**document, "spec": {**document["spec"], "endpoint": []}})


def test_the_parts_find_each_other(helm: str) -> None:
    found = objects(helm, EVERYTHING)
    serve, score = found["Deployment", "fleet"]["spec"], found["Deployment", "fleet-score"]["spec"]
    check = found["Job", "fleet-check"]["spec"]
    parts = {"serve": serve, "score": score, "check": check}
    labels = {name: part["template"]["metadata"]["labels"] for name, part in parts.items()}
    for name in ("serve", "score"):
        chosen = parts[name]["selector"]["matchLabels"].items()
        assert [other for other in labels if chosen <= labels[other].items()] == [name]
        [container] = parts[name]["template"]["spec"]["containers"]
        assert container["args"][0] == name
        assert container["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "http"}
    service, monitor = found["Service", "fleet"], found["ServiceMonitor", "fleet"]
    assert service["spec"]["selector"] == labels["serve"]
    chosen = monitor["spec"]["selector"]["matchLabels"]
    assert chosen.items() <= service["metadata"]["labels"].items()
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    [endpoint], [port] = monitor["spec"]["endpoints"], service["spec"]["ports"]
    assert endpoint["port"] == port["name"]
    secret = endpoint["authorization"]["credentials"]
    assert secret["key"] in found["Secret", secret["name"]]["stringData"]
    rules = yaml.safe_load((ROOT / "docker" / "monitoring" / "alerts.yaml").read_text())
    assert found["PrometheusRule", "fleet"]["spec"] == rules
    policy = found["NetworkPolicy", "fleet"]["spec"]["podSelector"]["matchLabels"]
    assert all(policy.items() <= of.items() for of in labels.values())
    hooks = found["Job", "fleet-check"]["metadata"]["annotations"]["helm.sh/hook"]
    assert hooks == "pre-upgrade,test"


def test_values_become_settings(helm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large and small numbers, lists and booleans arrive as they were written."""
    settings = {
        "batch_size": 3_000_000,
        "delta": 1e-9,
        "epsilon": 0.5,
        "features": ["a", "b.c"],
        "create_topics": False,
        "input_topic": "t",
        "bootstrap_servers": "one:9092,two:9094",
        "schema_registry_url": "https://registry.example",
    }
    values = {"settings": settings, "existingSecret": "mine", "networkPolicy": {"ports": [9999]}}
    done = rendered(helm, values)
    assert done.returncode == 0, done.stderr
    kinds = {one["kind"]: one for one in yaml.safe_load_all(done.stdout) if one}
    assert "Secret" not in kinds
    [container] = kinds["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "mine"}}]
    for entry in container["env"]:
        monkeypatch.setenv(entry["name"], entry["value"])
    loaded = load_settings()
    assert (loaded.batch_size, loaded.delta, loaded.epsilon) == (3_000_000, 1e-9, 0.5)
    assert loaded.features == ("a", "b.c") and loaded.create_topics is False
    ports = [rule["port"] for rule in kinds["NetworkPolicy"]["spec"]["egress"][0]["ports"]]
    assert ports == [53, 53, 9092, 9094, 443, 9999]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"settings": {"epsilom": 1}}, "epsilom"),
        ({"settings": {"epsilon": None}}, "epsilon"),
        ({"settings": {"http_port": 80}}, "http_port"),
        ({"settings": {"sasl_password": "x"}}, "sasl_password"),
        ({"secrets": {"http_token": None}}, "http_token"),
        ({"secrets": {"http_token": "short"}}, "http_token"),
        ({"replica": 3}, "replica"),
    ],
)
def test_wrong_values_are_refused(helm: str, wrong: dict[str, Any], said: str) -> None:
    done = rendered(helm, wrong, "--values", str(CHART / "example.yaml"))
    assert done.returncode and said in done.stderr and not done.stdout

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from consumers.errors import ConfigurationError
from consumers.settings import Settings, load_settings, unmatched_variables

LEAST: dict[str, Any] = {
    "features": "cpu, memory,disk.read", "epsilon": "1", "delta": "1e-6", "batch_size": "1000",
    "input_topic": "telemetry",
}  # fmt: skip
SECRET = "hunter2-very-secret"  # noqa: S105


def test_the_least_that_must_be_set() -> None:
    settings = load_settings(LEAST)
    assert settings.features == ("cpu", "memory", "disk.read")
    assert settings.model == "telemetry"
    assert settings.group == "stream-dppca.telemetry"
    assert settings.output_topic == "telemetry.components"
    assert settings.state_topic == "telemetry.dppca-state"
    assert settings.http_host == "127.0.0.1"
    assert settings.estimator()["batch_size"] == 1000
    with pytest.raises(ConfigurationError) as caught:
        load_settings({})
    for name in LEAST:
        assert f"`{name}`: must be set: DPPCA_{name.upper()}, --{name.replace('_', '-')}" in str(
            caught.value
        )


def test_flags_over_environment_over_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "dppca.toml"
    file.write_text('epsilon = 3.0\ndelta = 1e-5\nbatch_size = 500\nfeatures = ["a", "b"]\n')
    monkeypatch.setenv("DPPCA_EPSILON", "2")
    monkeypatch.setenv("DPPCA_BATCH_SIZE", "600")
    monkeypatch.setenv("DPPCA_INPUT_TOPIC", "t")
    settings = load_settings({"batch_size": "700"}, file)
    found = settings.delta, settings.epsilon, settings.batch_size, settings.features
    assert found == (1e-5, 2.0, 700, ("a", "b"))
    monkeypatch.setenv("DPPCA_CONFIG", str(file))
    assert load_settings().delta == 1e-5


def test_features_as_a_json_list() -> None:
    assert load_settings({**LEAST, "features": '["a,b", " c"]'}).features == ("a,b", " c")


def test_settings_cannot_change() -> None:
    with pytest.raises(Exception, match="frozen"):
        load_settings(LEAST).epsilon = 2.0  # type: ignore[misc]


@pytest.mark.parametrize(
    "name, value",
    [("epsilon", "0"), ("epsilon", "nan"), ("epsilon", "inf"), ("delta", "1"), ("batch_size", "1"),
     ("batch_size", "x"), ("features", ""), ("features", "a,a"),
     ("features", '["a"'), ("format", "avro"),
     ("shards", "0"), ("input_topic", "no spaces"), ("http_port", "70000"), ("seed", "-1"),
     ("security_protocol", "TLS"), ("start", "middle")],
)  # fmt: skip
def test_a_bad_value_is_named_and_not_shown(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"`{name}`"):
        load_settings({**LEAST, name: value})
    if name == "features":  # these may be called anything
        return
    with pytest.raises(ConfigurationError) as caught:
        load_settings({**LEAST, name: SECRET + " !"})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "changes, wrong",
    [({"input_topic": None}, "input_topic"), ({"input_topic": "no spaces"}, "input_topic"),
     ({"input_topic": "line\n"}, "input_topic"), ({"model": "no spaces"}, "model")],
)  # fmt: skip
def test_a_wrong_name_is_said_once(changes: dict[str, Any], wrong: str) -> None:
    given = {name: value for name, value in {**LEAST, **changes}.items() if value is not None}
    with pytest.raises(ConfigurationError) as caught:
        load_settings(given)
    assert [line.split("`")[1] for line in str(caught.value).splitlines()] == [wrong]


def test_unknown_settings_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "dppca.toml"
    file.write_text("batchsize = 3\n")
    with pytest.raises(ConfigurationError, match="`batchsize`: is no setting"):
        load_settings(LEAST, file)
    file.write_text("not toml at all")
    with pytest.raises(
        ConfigurationError, match="cannot be read: it is no TOML at line 1, column 5"
    ):
        load_settings(LEAST, file)
    file.write_text(f'sasl_password = "{SECRET}')
    with pytest.raises(ConfigurationError, match="no TOML at") as caught:
        load_settings(LEAST, file)
    assert SECRET not in str(caught.value)
    with pytest.raises(ConfigurationError, match="there is no file"):
        load_settings(LEAST, tmp_path / "other.toml")
    assert "DPPCA_CONFIG" not in os.environ


def test_mistyped_variables_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPPCA_EPSILN", "1")
    monkeypatch.setenv("DPPCA_EPSILON", "1")
    monkeypatch.setenv("DPPCA_CONFIG", "x")
    assert unmatched_variables() == ["DPPCA_EPSILN"]


def test_secrets_are_masked_and_passed_on() -> None:
    sasl = {
        "security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-512", "sasl_username": "me",
        "sasl_password": SECRET,
    }  # fmt: skip
    settings = load_settings({**LEAST, **sasl})
    assert SECRET not in repr(settings) and SECRET not in str(settings.shown())
    assert settings.connection()["sasl_plain_password"] == SECRET
    with pytest.raises(ConfigurationError, match="SASL needs") as caught:
        load_settings({**LEAST, **sasl, "sasl_mechanism": None})
    assert SECRET not in str(caught.value)
    with pytest.raises(ConfigurationError, match="ssl_cafile"):
        load_settings({**LEAST, **sasl, "ssl_cafile": "/no/such/file"})


def test_topics_must_differ() -> None:
    with pytest.raises(ConfigurationError, match="must differ"):
        load_settings({**LEAST, "output_topic": "telemetry"})


def test_every_setting_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "service.md").read_text()
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert f"`{name}`" in text, name

"""Settings of the engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from consumers.errors import ConfigurationError
from consumers.settings import load_settings, unmatched_variables
from tests.consumers.test_settings import LEAST, SECRET


def test_spark_settings_come_from_the_file_and_from_variables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('[spark_conf]\n"spark.driver.host" = "a"\n"spark.executor.memory" = "1g"\n')
    monkeypatch.setenv("DPPCA_SPARK_CONF__spark.executor.memory", "2g")
    monkeypatch.setenv("DPPCA_SPARK_CONF__spark.authenticate.secret", SECRET)
    given = {**LEAST, "engine": "spark", "spark_master": "spark://there:7077"}
    settings = load_settings(given, file)
    found = {name: value.get_secret_value() for name, value in settings.spark_conf.items()}
    assert found == {
        "spark.driver.host": "a",
        "spark.executor.memory": "2g",
        "spark.authenticate.secret": SECRET,
    }
    assert SECRET not in json.dumps(settings.shown()) and SECRET not in repr(settings)
    assert not [name for name in unmatched_variables() if "SPARK" in name]


def test_spark_needs_a_master() -> None:
    assert load_settings(LEAST).engine == "local"
    with pytest.raises(ConfigurationError, match="`spark_master` must be set"):
        load_settings({**LEAST, "engine": "spark"})

from __future__ import annotations

import dataclasses
import inspect
import os
import re
from pathlib import Path
from typing import Any

import pytest

from consumers.errors import ConfigurationError, StateRefused
from consumers.kafka.configure import kafka_config
from consumers.kafka.registry import open_registry
from consumers.messages.recipe import MessageRecipe
from consumers.model.states import make_estimator, restore_estimator
from consumers.service.loop import task_config
from consumers.settings import (
    PARTS,
    ClusterSettings,
    ConnectionSettings,
    EstimatorRecipe,
    FileSettings,
    ModelSettings,
    RoundRule,
    Settings,
    load_part,
    load_settings,
    suggestion,
    unmatched_variables,
)
from docs.settings_table import CHART_FILE, DOCS_FILE, with_names, with_tables
from stream_dppca import DPPCA, PaperDPPCA, ParameterError, PerSubject

LEAST: dict[str, Any] = {
    "features": "cpu, memory,disk.read",
    "epsilon": "1",
    "delta": "1e-6",
    "batch_size": "1000",
    "input_topic": "telemetry",
}
SECRET = "hunter2-very-secret"  # noqa: S105


def test_the_least_that_must_be_set() -> None:
    settings = load_settings(LEAST)
    assert settings.features == ("cpu", "memory", "disk.read")
    assert settings.model == "telemetry"
    assert settings.group == "stream-dppca.telemetry"
    assert settings.output_topic == "telemetry.components"
    assert settings.state_topic == "telemetry.dppca-state"
    assert settings.http_host == "127.0.0.1"
    assert settings.estimator_recipe().parameters["batch_size"] == 1000
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


def test_ranges_and_attributes_of_features() -> None:
    given = 'x[0..2], rate(io{a="1",b!="2"}),y'
    expected = ("x[0]", "x[1]", "x[2]", 'rate(io{a="1",b!="2"})', "y")
    assert load_settings({**LEAST, "features": given}).features == expected
    as_list = '["x[0..2]", "rate(io{a=\\"1\\",b!=\\"2\\"})", "y"]'
    assert load_settings({**LEAST, "features": as_list}).features == expected


def test_features_as_a_json_list() -> None:
    assert load_settings({**LEAST, "features": '["a,b", " c"]'}).features == ("a,b", " c")


def test_settings_cannot_change() -> None:
    with pytest.raises(Exception, match="frozen"):
        load_settings(LEAST).epsilon = 2.0  # type: ignore[misc]


@pytest.mark.parametrize(
    "name, value",
    [
        ("epsilon", "0"),
        ("epsilon", "nan"),
        ("epsilon", "inf"),
        ("delta", "1"),
        ("batch_size", "1"),
        ("batch_size", "x"),
        ("features", ""),
        ("features", "a[2..1]"),
        ("features", '["a"'),
        ("format", "xml"),
        ("input_topic", "no spaces"),
        ("http_port", "70000"),
        ("seed", "-1"),
        ("security_protocol", "TLS"),
        ("start", "middle"),
        ("schema_registry_url", "registry:8081"),
        ("schema_registry_url", "http://a:b@registry"),
    ],
)
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
    [
        ({"input_topic": None}, "input_topic"),
        ({"input_topic": "no spaces"}, "input_topic"),
        ({"input_topic": "line\n"}, "input_topic"),
        ({"model": "no spaces"}, "model"),
    ],
)
def test_a_wrong_name_is_said_once(changes: dict[str, Any], wrong: str) -> None:
    given = {name: value for name, value in {**LEAST, **changes}.items() if value is not None}
    with pytest.raises(ConfigurationError) as caught:
        load_settings(given)
    assert [line.split("`")[1] for line in str(caught.value).splitlines()] == [wrong]


def test_unknown_settings_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "dppca.toml"
    file.write_text("batchsize = 3\n")
    with pytest.raises(
        ConfigurationError, match="`batchsize`: is not a setting; did you mean `batch_size`"
    ):
        load_settings(LEAST, file)
    file.write_text("not toml at all")
    with pytest.raises(ConfigurationError, match="is not valid TOML at line 1, column 5"):
        load_settings(LEAST, file)
    file.write_text(f'sasl_password = "{SECRET}')
    with pytest.raises(ConfigurationError, match="not valid TOML at") as caught:
        load_settings(LEAST, file)
    assert SECRET not in str(caught.value)
    with pytest.raises(ConfigurationError, match="there is no file"):
        load_settings(LEAST, tmp_path / "other.toml")
    assert "DPPCA_CONFIG" not in os.environ
    with pytest.raises(ConfigurationError, match="there is no file"):  # nothing is remembered
        load_settings(LEAST, tmp_path / "other.toml")
    assert load_settings(LEAST).batch_size == 1000


def test_mistyped_variables_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPPCA_EPSILN", "1")
    monkeypatch.setenv("DPPCA_EPSILON", "1")
    monkeypatch.setenv("DPPCA_CONFIG", "x")
    assert unmatched_variables() == ["DPPCA_EPSILN"]
    assert suggestion("DPPCA_EPSILN") == "; did you mean `DPPCA_EPSILON`?"
    assert suggestion("DPPCA_COLOUR") == suggestion("colour") == ""


def test_secrets_are_masked_and_passed_on() -> None:
    sasl = {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": "me",
        "sasl_password": SECRET,
    }
    settings = load_settings({**LEAST, **sasl})
    assert SECRET not in repr(settings) and SECRET not in str(settings.shown())
    assert kafka_config(settings).connection["sasl_plain_password"] == SECRET
    assert (
        SECRET
        in (
            kafka_config(settings.model_copy(update={"reader": "confluent"})).librdkafka or {}
        ).values()
    )
    with pytest.raises(ConfigurationError, match="SASL needs") as caught:
        load_settings({**LEAST, **sasl, "sasl_mechanism": None})
    assert SECRET not in str(caught.value)
    with pytest.raises(ConfigurationError, match="ssl_cafile"):
        load_settings({**LEAST, **sasl, "ssl_cafile": "/no/such/file"})


def test_topics_must_differ() -> None:
    with pytest.raises(ConfigurationError, match="must differ"):
        load_settings({**LEAST, "output_topic": "telemetry"})


def test_every_setting_is_documented() -> None:
    for name, field in Settings.model_fields.items():
        assert field.description, name
    listed = [name for part in PARTS.values() for name in part.model_fields]
    assert sorted(listed) == sorted(Settings.model_fields)
    page = DOCS_FILE.read_text(encoding="utf-8")
    assert page == with_tables(page), "run `make docs`"
    schema = CHART_FILE.read_text(encoding="utf-8")
    assert schema == with_names(schema), "run `make docs`"
    for name in listed:
        assert page.count(f"| `{name}` |") == 1


def test_show_config_is_in_the_order_of_the_docs() -> None:
    listed = [name for part in PARTS.values() for name in part.model_fields]
    assert list(load_settings(LEAST).shown()) == listed


# Parts


def test_a_part_asks_for_what_it_needs_and_no_more() -> None:
    for kind, needed in (
        (ConnectionSettings, set()),
        (ClusterSettings, {"input_topic"}),
        (ModelSettings, set(LEAST) - {"input_topic"}),
        (FileSettings, set(LEAST)),
        (Settings, set(LEAST)),
    ):
        required = {n for n, field in kind.model_fields.items() if field.is_required()}
        assert required == needed - {"batch_size"}  # or `places`, with subjects
        load_part(kind, {name: LEAST[name] for name in needed})
        for name in needed:
            with pytest.raises(ConfigurationError, match=f"^`{name}`: must be set"):
                load_part(kind, {n: LEAST[n] for n in needed - {name}})


def test_one_file_and_one_set_of_flags_serve_all_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "dppca.toml"
    text = 'input_topic = "from-file"\nepsilon = 1.0\nhttp_port = 1\nrows_per_message = 3\n'
    file.write_text(text)
    monkeypatch.setenv("DPPCA_DELTA", "not a number")
    settings = load_part(ClusterSettings, {"batch_size": "x", "model": "m"}, file)
    assert (settings.input_topic, settings.rows_per_message) == ("from-file", 3)
    assert settings.output_topic == "m.components"
    assert "epsilon" not in settings.model_dump() and "delta" not in settings.model_dump()
    file.write_text("epsilonn = 1.0\n")
    with pytest.raises(ConfigurationError, match="`epsilonn`: is not a setting"):
        load_part(ClusterSettings, {"input_topic": "t"}, file)


def test_all_settings_can_be_used_as_any_of_their_parts() -> None:
    settings = load_settings(LEAST)
    assert isinstance(settings, FileSettings) and isinstance(settings, ClusterSettings)


# What the model gets


def test_only_what_was_set_goes_to_the_estimator(monkeypatch: pytest.MonkeyPatch) -> None:
    required = {"features", "epsilon", "delta", "batch_size"}
    # The seed is always there: None says that the model must be private.
    least = load_settings(LEAST).estimator_recipe()
    assert least.method == "adaptive" and least.parameters.keys() == required | {"seed"}
    monkeypatch.setenv("DPPCA_CENTER", "none")
    given = load_settings({**LEAST, "memory": "all", "scales": ""}).estimator_recipe().parameters
    assert given.keys() == required | {"seed", "center", "memory", "scales"}
    assert (given["center"], given["memory"], given["scales"]) == ("none", "all", None)


def test_the_settings_of_the_paper() -> None:
    large = {**LEAST, "batch_size": "100000", "method": "paper"}
    recipe = load_settings(
        {**large, "paper_k": "2", "paper_c1": "8", "seed": "1"}
    ).estimator_recipe()
    assert recipe.method == "paper"
    made = make_estimator(recipe)
    assert isinstance(made, PaperDPPCA)
    assert (made.K, made.a, made.zeta, made.C1, made.center) == (2.0, 1.0, 0.01, 8.0, "none")
    shown = load_settings(large).shown()
    assert (shown["center"], shown["scales"]) == ("none", "none")
    pairs = load_settings({**large, "center": "pairs", "scales": "1,2,3"}).estimator_recipe()
    assert make_estimator(pairs).state()["config"]["scales"] == [1.0, 2.0, 3.0]
    with pytest.raises(StateRefused, match=r"`config\.method` is 'paper', expected 'adaptive'"):
        restore_estimator(made.state(), "null", load_settings(LEAST).estimator_recipe())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"paper_k": "4"}, "`paper_k` is for method=paper. Found method=adaptive."),
        ({"paper_zeta": "0.1"}, "`paper_zeta` is for method=paper"),
        ({"method": "paper", "memory": "auto"}, "`memory` is for method=adaptive"),
        ({"method": "paper", "missing": "null"}, "`missing` is for method=adaptive"),
        ({"method": "paper", "engine": "spark", "spark_master": "x"}, "`engine` must be local"),
        (
            {
                "method": "paper",
                "unit": "subject",
                "batch_size": None,
                "places": 100,
                "subject": "id",
                "round": "1h",
            },
            "`method` must be adaptive with unit=subject: the paper assumes one record per person",
        ),
        ({"places": "100"}, "`places`: must be left out with unit=record: a batch has batch_size"),
        ({"batch_size": None}, "`batch_size`: must be set: DPPCA_BATCH_SIZE, --batch-size"),
    ],
)
def test_what_means_nothing_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        load_settings({**LEAST, **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"center": "pairs"}, "`center` must be one of mean, none, own. Found 'pairs'"),
        ({"center": "own"}, '`center` must not be "own" unless `unit` is a PerSubject'),
        ({"scales": "1,-2,3"}, "`scales` must lie between 1e-18 and 1e+18. Found -2"),
        ({"scales": "1,NaN,2"}, "`scales` must lie between 1e-18 and 1e+18. Found nan"),
        ({"scales": "true,1,2"}, "`scales` must lie between 1e-18 and 1e+18. Found True"),
        ({"scales": '{"cpu": 1, "memry": 1, "disk.read": 1}'}, "'missing': ['memory']"),
        ({"memory": "1"}, '`memory` must be "auto", "all" or a number of batches above 1'),
        ({"memory": "nan"}, '`memory` must be "auto", "all" or a number of batches above 1'),
        ({"method": "paper", "center": "mean"}, "`center` must be one of none, pairs"),
        ({"method": "paper", "scales": "learn"}, "`scales` must be None, or one number"),
    ],
)
def test_the_estimator_refuses_what_it_cannot_do(changes: dict[str, Any], said: str) -> None:
    given = load_settings({**LEAST, "batch_size": "100000", **changes})
    with pytest.raises(ParameterError, match=re.escape(said)):
        make_estimator(given.estimator_recipe())


@pytest.mark.parametrize(
    "text, scales",
    [
        ("learn", "learn"),
        ("none", None),
        ("10, 10,1e6", (10.0, 10.0, 1e6)),
        ("[10, 10, 1e6]", (10.0, 10.0, 1e6)),
        ((10, 10, 1e6), (10.0, 10.0, 1e6)),
        (
            '{"disk.read": 1e6, "memory": 10, "cpu": 10}',
            {"cpu": 10.0, "memory": 10.0, "disk.read": 1e6},
        ),
    ],
)
def test_scales_are_learned_or_numbers_in_order_or_by_name(text: Any, scales: Any) -> None:
    settings = load_settings({**LEAST, "scales": text})
    assert settings.estimator_recipe().parameters["scales"] == scales
    settings.shown()
    assert make_estimator(settings.estimator_recipe()).scales == scales


@pytest.mark.parametrize("text", ["x", "1,,2", "{", 5])
def test_scales_that_cannot_be(text: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^`scales`: must be learn, none, or numbers in"):
        load_settings({**LEAST, "scales": text})


def test_scales_by_name_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "dppca.toml"
    file.write_text('memory = 20\n[scales]\ncpu = 10\nmemory = 10\n"disk.read" = 1e6\n')
    settings = load_settings(LEAST, file)
    assert settings.scales == {"cpu": 10.0, "memory": 10.0, "disk.read": 1e6}
    assert settings.memory == 20.0


@pytest.mark.parametrize("text, memory", [("auto", "auto"), ("all", "all"), ("20", 20.0)])
def test_memory(text: str, memory: Any) -> None:
    settings = load_settings({**LEAST, "memory": text})
    made = make_estimator(settings.estimator_recipe())
    assert isinstance(made, DPPCA)
    assert (made.memory, made.missing) == (memory, "null")
    for bad in ("some", "true", ""):
        with pytest.raises(ConfigurationError, match=r"^`memory`: must be auto, all, or a number"):
            load_settings({**LEAST, "memory": bad})


def test_the_defaults_are_those_of_the_estimator() -> None:
    """The table of the docs shows them; a new model gets them from its class itself."""
    parameters = dict(inspect.signature(PerSubject).parameters)
    parameters |= inspect.signature(PaperDPPCA).parameters
    parameters |= inspect.signature(DPPCA).parameters
    names = {"paper_k": "K", "paper_a": "a", "paper_zeta": "zeta", "paper_c1": "C1"}
    for name, field in ModelSettings.model_fields.items():
        # Durations become numbers of rounds, and `round` is for those who close them. The method is
        # a class, and subjects and places have no default.
        if not field.is_required() and name not in (
            "round",
            "period",
            "method",
            "subject",
            "places",
        ):
            assert field.get_default() == parameters[names.get(name, name)].default, name


def test_a_stored_model_keeps_its_own_values() -> None:
    """A stored model resumes as if no default had changed since the state was written."""
    settings = load_settings(LEAST)
    given = {**settings.estimator_recipe().parameters, "center": "none", "missing": "center"}
    old = make_estimator(EstimatorRecipe("adaptive", given))
    restored = restore_estimator(old.state(), "null", settings.estimator_recipe())
    assert (restored.center, restored.missing) == ("none", "center")
    explicit = load_settings({**LEAST, "center": "mean"})
    with pytest.raises(StateRefused, match="center"):
        restore_estimator(old.state(), "null", explicit.estimator_recipe())


def test_a_seeded_model_does_not_resume_as_if_it_were_private() -> None:
    seeded = load_settings({**LEAST, "seed": "3"})
    state = make_estimator(seeded.estimator_recipe()).state()
    assert not restore_estimator(state, "null", seeded.estimator_recipe()).privacy.private
    with pytest.raises(StateRefused, match="seed"):
        restore_estimator(state, "null", load_settings(LEAST).estimator_recipe())


# Messages


@pytest.mark.parametrize("format", ["float32", "float64"])
def test_packed_formats_say_how_many_vectors(format: str) -> None:
    packed = {**LEAST, "format": format}
    with pytest.raises(
        ConfigurationError, match=f"^`rows_per_message` must be set with .*{format}"
    ):
        task_config(load_settings(packed))
    for rows in (1, 8, 1000):
        assert load_settings({**packed, "rows_per_message": rows}).rows_per_message == rows
    for rows in (3, 64, 2000):
        with pytest.raises(
            ConfigurationError,
            match=f"^`batch_size` must be a multiple of `rows_per_message`. Found 1000 and {rows}",
        ):
            load_settings({**packed, "rows_per_message": rows})
    # Only those who learn must know.
    load_part(ClusterSettings, packed)


@pytest.mark.parametrize(("format", "size"), [("float32", 4), ("float64", 8)])
def test_a_packed_message_must_not_be_too_long_to_be_read(format: str, size: int) -> None:
    """Every message would be a null."""
    most = 500 * 2 * size
    packed = {**LEAST, "features": "a,b", "format": format, "rows_per_message": 500}
    assert load_settings({**packed, "max_message_bytes": most}).max_message_bytes == most
    with pytest.raises(ConfigurationError, match=f"`max_message_bytes` must be at least {most}"):
        load_settings({**packed, "max_message_bytes": most - 1})


@pytest.mark.parametrize(
    ("rows", "records", "most"), [(1, 5000, 5000), (64, 5000, 1024), (64, 100, 100), (10**6, 1, 1)]
)
def test_one_read_brings_a_bounded_number_of_vectors(rows: int, records: int, most: int) -> None:
    settings = load_settings(
        {
            **LEAST,
            "batch_size": 10**6 * 64,
            "format": "float32",
            "rows_per_message": rows,
            "max_poll_records": records,
            "max_message_bytes": 1 << 30,
        }
    )
    assert kafka_config(settings).fetch["max_poll_records"] == most


@pytest.mark.parametrize("format", ["json", "json-array"])
def test_a_json_message_is_one_vector(format: str) -> None:
    assert load_settings({**LEAST, "format": format}).rows_per_message == 1
    with pytest.raises(ConfigurationError, match=f"must be 1 with format {format}"):
        task_config(load_settings({**LEAST, "format": format, "rows_per_message": 10}))


def test_the_plan_interval() -> None:
    assert load_settings(LEAST).plan_interval_ms == 50
    for value in ("9", "10001", "50.5"):
        with pytest.raises(ConfigurationError, match="`plan_interval_ms`"):
            load_settings({**LEAST, "plan_interval_ms": value})


def test_a_registry_has_an_address_and_both_halves_of_a_login() -> None:
    with pytest.raises(ConfigurationError, match="`schema_registry_url` must be set with format"):
        load_settings({**LEAST, "format": "avro"})
    address = {"format": "protobuf", "schema_registry_url": "http://one:8081, https://two"}
    with pytest.raises(ConfigurationError, match="must be set together"):
        load_settings({**LEAST, **address, "schema_registry_username": "u"})
    login = {"schema_registry_username": "u", "schema_registry_password": SECRET}
    found = load_settings({**LEAST, **address, **login})
    assert SECRET not in str(found.shown()) and open_registry(MessageRecipe.of(found)) is not None
    with pytest.raises(ConfigurationError, match="schema_registry_cafile"):
        open_registry(
            MessageRecipe.of(load_settings({**LEAST, **address, "schema_registry_cafile": "/none"}))
        )


# Privacy per subject

ROUNDS: dict[str, Any] = {
    **{name: value for name, value in LEAST.items() if name != "batch_size"},
    "places": "1000",
    "subject": "device_id",
    "round": "1h",
}


def test_a_subject_is_the_unit_and_durations_become_rounds() -> None:
    settings = load_settings({**ROUNDS, "period": "24h", "horizon": "365d"})
    assert settings.unit == "subject"
    assert settings.rounds() == RoundRule("device_id", 3_600_000, 24, 8760)
    given = settings.estimator_recipe()
    unit = PerSubject("device_id", places=1000, period=24, horizon=8760, records=4)
    assert given.parameters["unit"] == dataclasses.asdict(unit)
    made = make_estimator(given)
    assert isinstance(made, DPPCA) and made.unit == unit and made.privacy.unit == "subject"
    assert load_settings(ROUNDS).rounds() == RoundRule("device_id", 3_600_000, 1)
    assert load_settings(LEAST).rounds() is None
    assert "unit" not in load_settings(LEAST).estimator_recipe().parameters
    shown = settings.shown()
    assert (shown["round"], shown["horizon"], shown["clock_slack"]) == ("1h", "365d", "10s")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"subject": None, "unit": "subject"}, "`subject` must be set"),
        ({"round": None}, "`round` must be set"),
        ({"unit": "record", "places": None, "batch_size": 9}, "is for unit=subject"),
        ({"places": None}, "`places`: must be set: DPPCA_PLACES, --places, or in the file"),
        (
            {"batch_size": "9"},
            "`batch_size`: must be left out with unit=subject: a round has places",
        ),
        ({"round": "1.5h"}, "`round`: must be a whole number with a unit"),
        ({"round": "0h"}, "`round`: must be a whole number with a unit"),
        ({"round": "3600"}, "`round`: must be a whole number with a unit"),
        ({"round": "999ms"}, "`round` must be at least 1s"),
        ({"period": "90m"}, "`period` must be a whole number of rounds of 1h. Found 90m"),
        ({"horizon": "30m"}, "`horizon` must be a whole number of rounds of 1h. Found 30m"),
        ({"records": "0"}, "`records`"),
        ({"records": "65"}, "`records`"),
        ({"subject": "cpu"}, "must not be one of the features"),
        ({"format": "float32", "rows_per_message": 7}, "`subject` must be @key"),
        ({"format": "json-array"}, "`subject` must be @key"),
        ({"start": "earliest"}, "would tell when its subject sent it"),
        ({"start": "2026-01-01T00:30Z"}, "must be the beginning of a round"),
        ({"start": "2026-01-01T00:00"}, "a time with its zone"),
    ],
)
def test_rounds_that_cannot_be(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        task_config(load_settings({**ROUNDS, **changes}))


def test_what_only_subjects_have() -> None:
    for name, value in (("round", "1h"), ("period", "1h"), ("horizon", "1h"), ("records", 2)):
        with pytest.raises(ConfigurationError, match=f"`{name}` is for unit=subject"):
            load_settings({**LEAST, name: value})
    with pytest.raises(ConfigurationError, match="must be earliest or latest"):
        load_settings({**LEAST, "start": "2026-01-01T00:00Z"})


def test_packed_rows_by_key() -> None:
    """A round is not a number of messages, so the places need not be a multiple of their rows."""
    packed = {"subject": "@key", "format": "float32", "rows_per_message": 7}
    settings = load_settings({**ROUNDS, **packed})
    assert settings.rounds() == RoundRule("@key", 3_600_000, 1)


def test_the_first_round_follows_from_the_clock_or_the_settings() -> None:
    hour = 3_600_000
    assert load_settings(ROUNDS).first_round(5 * hour + 1) == 6
    assert load_settings({**ROUNDS, "start": "latest"}).first_round(5 * hour) == 5
    said = load_settings({**ROUNDS, "start": "1970-01-02T03:00+01:00"})
    assert said.first_round(10**15) == 26


def test_settings_of_points() -> None:
    given = {
        **LEAST,
        "format": "otlp",
        "features": 'rate(net.io{direction="in",device!="lo"}),cpu',
        "subject": "host.name",
        "places": 100,
        "round": "1h",
    }
    del given["batch_size"]
    parameters = load_settings({**given, "parts": 4}).estimator_recipe().parameters
    assert parameters["unit"]["records"] == 4
    assert parameters["missing"] == "center"
    assert (
        load_settings({**given, "missing": "null"}).estimator_recipe().parameters["missing"]
        == "null"
    )
    long = {**given, "format": "long", "long_fields": "name = name,labels=tags", "text_values": "1"}
    settings = load_settings(long)
    assert settings.long_fields == {
        "name": "name",
        "value": "value",
        "time": "timestamp",
        "labels": "tags",
    }
    per_record = {**LEAST, "format": "otlp", "rows_per_message": 5, "group_by": "host.name, a"}
    assert load_settings(per_record).group_by == ("host.name", "a")
    for wrong, named in (
        ({**given, "records": 2}, "records"),
        ({**given, "group_by": "a"}, "group_by"),
        ({**given, "rows_per_message": 2}, "rows_per_message"),
        ({**given, "text_values": True}, "text_values"),
        ({**long, "long_fields": "nam=x"}, "long_fields"),
        ({**long, "long_fields": "name="}, "long_fields"),
        ({**per_record, "parts": 2}, "parts"),
        ({**LEAST, "group_by": "a"}, "group_by"),
    ):
        with pytest.raises(ConfigurationError, match=f"`{named}`"):
            load_settings(wrong)

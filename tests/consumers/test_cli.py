from __future__ import annotations

import json
import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from consumers import cli
from consumers.cli import brokers, commands, parsing
from consumers.errors import ConfigurationError
from consumers.events import ConnectionFailures
from consumers.model.describe import promise_in_words
from consumers.settings import RoundRule
from consumers.settings.durations import parse_duration
from stream_dppca import PerSubject, SubjectStatement
from tests.support.memory import MemoryBroker, MemoryCluster

from ..support import zygote
from ..support.processes import PATIENCE_SECONDS

LEAST = [
    "--features",
    "a,b",
    "--epsilon",
    "1",
    "--delta",
    "1e-6",
    "--batch-size",
    "1000",
    "--input-topic",
    "t",
]


#: Packages that take long to import.
SLOW = {"kafka", "numpy", "pydantic", "river", "scipy", "stream_dppca"}


def test_help_is_quick_and_teaches() -> None:
    """It is quick because it imports no slow package."""
    command = [sys.executable, "-X", "importtime", "-m", "consumers.cli", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "consumers.cli.entry" in imported and not imported & SLOW
    for word in (*commands.COMMANDS, "DPPCA_INPUT_TOPIC"):
        assert word in done.stdout


@pytest.mark.parametrize("command", list(commands.COMMANDS))
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([command, "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "--config" in text and "default: DPPCA_CONFIG" in text and "DPPCA_MODEL" in text
    learns = command in ("serve", "check-config", "show-config", "run")
    asks = command not in ("run", "plan")
    assert ("--method {adaptive,paper}" in text) == (learns or command == "plan")
    assert ("over any `period`; smaller is stricter (required)" in " ".join(text.split())) == (
        learns or command == "plan"
    )
    assert ("{PLAIN,SCRAM-SHA-256," in text) == asks
    assert ("--stall-timeout-s" in text) == ((learns and asks) or command == "score")
    assert ("--input-topic" in text) == asks
    a_setting = "--epsilon" if command == "plan" else "--model"
    assert text.index("--config") < text.index("settings (") < text.index(a_setting)
    assert len(text.split("\n\n")[0].splitlines()) == 1  # the usage, before anything else


@pytest.mark.parametrize("command", ["topics", "inspect"])
def test_no_command_asks_for_an_epsilon_that_it_does_not_need(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on(MemoryBroker(), monkeypatch)
    assert cli.main([command]) == 78
    name = "input_topic" if command == "topics" else "model"
    assert capsys.readouterr().err.startswith(f"`{name}`: must be set: DPPCA_{name.upper()}, ")
    monkeypatch.setenv("DPPCA_EPSILON", "not a number")
    cluster = MemoryBroker()
    cluster.create("t", 1)
    cluster.create("t.components", 1)
    on(cluster, monkeypatch)
    code = cli.main([command, "--input-topic", "t"])
    assert code == (0 if command == "topics" else 1)
    assert "must be set" not in capsys.readouterr().err


def test_run_asks_for_nothing_of_kafka(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--input", "no-such.csv"]) == 78
    missing = [line.split("`")[1] for line in capsys.readouterr().err.splitlines()]
    assert missing == ["features", "epsilon", "delta", "batch_size"]


def test_nothing_said_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "check-config" in capsys.readouterr().err


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    from stream_dppca import __version__

    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"stream-dppca {__version__}\n"


def test_flags_are_not_abbreviated(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["show-config", *LEAST, "--n-comp", "2"])
    assert "--n-comp" in capsys.readouterr().err


def test_show_config_masks(capsys: pytest.CaptureFixture[str]) -> None:
    secret = ["--ssl-password", "hunter2"]
    assert cli.main(["show-config", *LEAST, *secret]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["ssl_password"] == "*" * 10
    assert shown["state_topic"] == "t.dppca-state"
    for servers in ("me:hunter2@broker:9092", "broker:9092,SASL_SSL://me:hunter2@other:9092"):
        assert cli.main(["show-config", *LEAST, "--bootstrap-servers", servers]) == 78
        printed = capsys.readouterr()
        assert "hunter2" not in printed.out + printed.err and "bootstrap_servers" in printed.err


@pytest.mark.parametrize("command", ["inspect", "watch", "score", "check-config"])
@pytest.mark.parametrize("servers", ["", " ", ", ,"])
def test_no_brokers_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, servers: str
) -> None:
    """A variable of a shell that is not set is empty."""
    monkeypatch.setenv("DPPCA_BOOTSTRAP_SERVERS", servers)
    assert cli.main([command, *LEAST]) == 78
    assert capsys.readouterr().err.startswith("`bootstrap_servers`: is empty")


def test_check_config_offline(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check-config", "--offline", *LEAST]) == 0
    assert cli.main(["check-config", "--offline", *LEAST, "--batch-size", "2"]) == 78
    assert "`batch_size` must be at least" in capsys.readouterr().err
    assert cli.main(["check-config", "--offline", *LEAST, "--features", "a,a.b"]) == 78
    assert cli.main(["check-config", "--offline"]) == 78
    assert "`features`: must be set" in capsys.readouterr().err


def test_a_mistyped_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serv"]) == 2
    assert "'serv' is not a command; did you mean serve?" in capsys.readouterr().err
    assert cli.main(["nothing-like-it"]) == 2
    assert "'nothing-like-it' is not a command; see --help" in capsys.readouterr().err


def test_plan(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    budget = ["--epsilon", "1", "--delta", "1e-6"]
    assert (
        cli.main(["plan", *budget, "--count", "38", "--batch-size", "3000", "--rate", "500"]) == 0
    )
    said = capsys.readouterr().out
    assert (
        "38 features, 1 component, epsilon = 1" in said and "the first step takes 2 batches" in said
    )
    assert cli.main(["plan", "--epsilon", "50", "--delta", "0.1", "--count", "5"]) == 0
    assert "warning: epsilon = 50 promises next to nothing" in capsys.readouterr().err
    assert (
        cli.main(["plan", *budget, "--features", "a,b", "--center", "none", "--scales", "none"])
        == 0
    )
    said = capsys.readouterr().out
    assert "2 features" in said and "the first step takes 1 batch (" in said
    assert cli.main(["plan", *budget, "--count", "10", "--batch-size", "50"]) == 78
    assert "`batch_size` must be at least" in capsys.readouterr().err
    monkeypatch.setenv("DPPCA_EPSILON", "1")
    assert cli.main(["plan"]) == 78
    missing = [line.split("`")[1] for line in capsys.readouterr().err.splitlines()]
    assert missing == ["features", "delta"]
    assert cli.main(["plan", *budget, "--count", "3", "--method", "paper"]) == 0


def test_check_config_says_what_to_expect(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check-config", "--offline", *LEAST]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("2 features") and lines[-1] == "the settings are fine"


def test_a_seed_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    warning = "warning: seed is set: nothing is private"
    assert cli.main(["check-config", "--offline", *LEAST]) == 0
    assert warning not in capsys.readouterr().err
    assert cli.main(["check-config", "--offline", *LEAST, "--seed", "0"]) == 0
    assert warning in capsys.readouterr().err


def test_serve_says_whether_it_is_private() -> None:
    """It also ends before it connects to a broker, if the batch is too small."""
    for seed, private in (([], True), (["--seed", "0"], False)):
        given = ["serve", *LEAST, "--batch-size", "2", "--bootstrap-servers", "127.0.0.1:1", *seed]
        done = zygote.run(given, {}, PATIENCE_SECONDS)
        events = [json.loads(line) for line in done.stdout.splitlines()]
        assert done.returncode == 78
        names = [event["event"] for event in events]
        assert names == ["starting", *([] if private else ["not_private"]), "stopped"]
        assert events[0]["private"] is private and "batch_size" in events[-1]["message"]


def on(cluster: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands work with this cluster."""

    def connect(settings: Any) -> MemoryCluster:
        names = ("group", "state_topic", "input_topic", "output_topic")
        return MemoryCluster(cluster, **{name: getattr(settings, name) for name in names})

    monkeypatch.setattr(brokers, "connect", connect)


def test_check_config_on_a_fresh_cluster(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = MemoryBroker()
    on(cluster, monkeypatch)
    assert cli.main(["check-config", *LEAST]) == 78
    assert "'t' does not exist" in capsys.readouterr().err
    cluster.create("t", 1)
    assert cli.main(["check-config", *LEAST, "--create-topics", "false"]) == 78
    assert "Create it with" in capsys.readouterr().err
    assert cli.main(["check-config", *LEAST]) == 0
    assert "will be created: t.dppca-state, t.components" in capsys.readouterr().out
    assert cli.main(["topics", *LEAST]) == 0
    capsys.readouterr()
    assert cli.main(["check-config", *LEAST]) == 0
    assert "will be created" not in capsys.readouterr().out


def test_an_interrupt_while_importing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(parsing, "parse", interrupted)
    assert cli.main(["run", "--input", "-"]) == 130
    assert capsys.readouterr().err == "stopped\n"


def test_a_missing_package_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "consumers.kafka.cluster", raising=False)
    monkeypatch.setitem(sys.modules, "kafka", None)
    assert cli.main(["topics", *LEAST]) == 78
    hint = "this command needs kafka: pip install 'stream-dppca[service]'\n"
    assert capsys.readouterr().err == hint


def test_the_reason_of_the_last_failure() -> None:
    failures = ConnectionFailures()
    for text, wanted in (
        ("Bootstrap bootstrap-0 not ready; waiting 0.11 secs", ""),
        ("Connection failed: KafkaConnectionError: socket disconnected", "socket disconnected"),
        ("Connection failed: KafkaConnectionError: 111 ECONNREFUSED", "111 ECONNREFUSED"),
        (
            "Bootstrap connection to bootstrap-0 failed: [Error 58] SaslAuthenticationFailedError: "
            "SaslAuthenticationFailedError: Authentication failed (backoff 0.05 secs)",
            "Authentication failed",
        ),
        ("Connection failed: KafkaConnectionError: socket disconnected", "Authentication failed"),
        ("Bootstrap failed: KafkaTimeoutError: Unable to bootstrap", "Authentication failed"),
    ):
        logging.getLogger("kafka.net.manager").warning(text)
        assert failures.reason == wanted


def test_a_mistyped_variable_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPPCA_BATCHSIZE", "3")
    cli.main(["show-config", *LEAST])
    assert "DPPCA_BATCHSIZE is not a setting; did you mean `DPPCA_BATCH_SIZE`?" in (
        capsys.readouterr().err
    )


def test_an_unknown_error_is_not_quoted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*options: object) -> int:
        raise ValueError("the record was 987654")

    monkeypatch.setitem(commands.COMMANDS, "show-config", fail)
    assert cli.main(["show-config"]) == 1
    text = capsys.readouterr().err
    assert "987654" not in text and "ValueError" in text


def test_no_broker_is_said_shortly() -> None:
    nowhere = ["--bootstrap-servers", "127.0.0.1:1", "--request-timeout-s", "10"]
    wanted = b"bootstrap_servers 127.0.0.1:1: no broker answers (111 ECONNREFUSED)\n"

    def ask(name: str) -> tuple[bytes, int]:
        done = zygote.run([name, *LEAST, *nowhere], {}, PATIENCE_SECONDS)
        return done.stderr, done.returncode

    names = ("topics", "check-config", "inspect")
    with ThreadPoolExecutor(len(names)) as pool:  # each of them waits
        assert list(pool.map(ask, names)) == [(wanted, 1)] * len(names)


def test_patience_is_short_unless_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []

    def connect(settings: Any) -> MemoryCluster:
        found.append(settings.request_timeout_s)
        raise ConfigurationError("enough")

    monkeypatch.setattr(brokers, "connect", connect)
    cli.main(["topics", *LEAST])
    monkeypatch.setenv("DPPCA_REQUEST_TIMEOUT_S", "30")
    cli.main(["topics", *LEAST])
    assert found == [5.0, 30.0]


def test_the_service_needs_neither_rich_nor_the_demo() -> None:
    """Nor does the generator of the compose file need rich. The demonstration says that it does."""
    hidden = "import sys, runpy; sys.modules['rich'] = None; "
    checks = (
        f"from consumers.cli import main; code = main(['check-config', '--offline', *{LEAST}]); "
        "import consumers.service.loop, consumers.files.run, consumers.kafka.cluster; "
        "assert 'demo' not in sys.modules; sys.exit(code)",
        "import demo.generator",
    )
    for code in checks:
        done = subprocess.run([sys.executable, "-c", hidden + code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    code = "runpy.run_module('demo', run_name='__main__', alter_sys=True)"
    done = subprocess.run([sys.executable, "-c", hidden + code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("the demonstration needs rich")


FLEET = ["--count", "50", "--epsilon", "1", "--delta", "1e-6", "--round", "1h"]


def test_a_plan_per_subject(capsys: pytest.CaptureFixture[str]) -> None:
    times = ["--period", "24h", "--horizon", "365d", "--center", "none", "--scales", "none"]
    assert cli.main(["plan", *FLEET, *times, "--subjects", "1e5", "--presence", "0.9"]) == 0
    said = capsys.readouterr().out
    assert "100000 subjects" in said and "90 %" in said
    assert "any 24 rounds of one hour, broker time, or the time column of a file\n" in said
    assert "memory" not in said
    assert cli.main(["plan", *FLEET, *times, "--subjects", "1e5", "--format", "otlp"]) == 0
    said = capsys.readouterr().out
    assert "one hour, broker time\n" in said and "memory with otlp: 3,000.0 MB per part" in said
    assert cli.main(["plan", *FLEET, "--subject", "device_id", "--places", "100000"]) == 0
    assert "100000 subjects" in capsys.readouterr().out
    assert cli.main(["plan", *FLEET, "--subject", "device_id"]) == 78
    assert "--subjects must be given" in capsys.readouterr().err
    assert cli.main(["plan", *FLEET, "--subjects", "50"]) == 78
    assert "`subjects` must be at least" in capsys.readouterr().err
    assert cli.main(["plan", *FLEET, "--subjects", "1e5", "--places", "50"]) == 78
    assert "`places` must be at least" in capsys.readouterr().err
    assert cli.main(["plan", *FLEET, "--subjects", "1e5", "--batch-size", "10"]) == 78
    assert "`batch_size`: must be left out" in capsys.readouterr().err


def test_settings_per_subject_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    least = ["--features", "a,b", "--epsilon", "1", "--delta", "1e-6", "--input-topic", "t"]
    given = [*least, "--subject", "device_id", "--round", "24h", "--places", "20000"]
    assert cli.main(["check-config", "--offline", *given]) == 0
    said = capsys.readouterr().out
    assert "any round of one day, broker time" in said and "the settings are fine" in said
    assert cli.main(["check-config", "--offline", *given, "--center", "pairs"]) == 78
    assert "`center` must be one of mean, none, own. Found 'pairs'" in capsys.readouterr().err
    assert cli.main(["check-config", "--offline", *given, "--period", "36h"]) == 78
    assert "`period` must be a whole number of rounds" in capsys.readouterr().err


@pytest.mark.parametrize(
    "length, day, warned", [("1m", "1 day 82.2", True), ("1h", "1 day 5.79", False)]
)
def test_epsilon_is_stated_per_day_everywhere(
    length: str, day: str, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """In `plan`, in `check-config`, in a release and on the page, for any length of a round."""
    budget = ["--epsilon", "1", "--delta", "1e-6", "--round", length]
    assert cli.main(["plan", "--features", "a,b", "--subjects", "20000", *budget]) == 0
    topic = ["--input-topic", "t", "--subject", "id", "--places", "20000", "--features", "a,b"]
    assert cli.main(["check-config", "--offline", *topic, *budget]) == 0
    planned, checked = (
        next(line for line in text.splitlines() if "over longer times" in line)
        for text in capsys.readouterr().out.split("epsilon is for")[:2]
    )
    rounds = RoundRule("id", parse_duration(length), 1)
    said = SubjectStatement.of(
        PerSubject("id", places=1000), epsilon=1.0, delta=1e-6, method="adaptive", private=True
    )
    shown = promise_in_words(said.in_time(rounds.length_ms / 1000, rounds.scope()))
    for text in (planned, checked, shown):
        for time in (day, "7 days", "30 days", "365 days"):
            assert time in text
        assert ("WARNING" in text) == warned

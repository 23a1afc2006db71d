from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from consumers import cli

LEAST = ["--features", "a,b", "--epsilon", "1", "--delta", "1e-6", "--batch-size", "1000",
         "--input-topic", "t"]  # fmt: skip


def test_help_is_quick_and_teaches() -> None:
    times = []
    for _ in range(3):
        start = time.monotonic()
        command = [sys.executable, "-m", "consumers.cli", "--help"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        times.append(time.monotonic() - start)
    assert min(times) < 0.5
    for word in (*cli.COMMANDS, "DPPCA_INPUT_TOPIC"):
        assert word in done.stdout


@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([command, "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "--batch-size" in text and "--config" in text


def test_show_config_masks(capsys: pytest.CaptureFixture[str]) -> None:
    secret = ["--ssl-password", "hunter2"]
    assert cli.main(["show-config", *LEAST, *secret]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["ssl_password"] == "*" * 10
    assert shown["state_topic"] == "t.dppca-state"


def test_check_config_offline(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check-config", "--offline", *LEAST]) == 0
    assert cli.main(["check-config", "--offline", *LEAST, "--batch-size", "2"]) == 78
    assert "`batch_size` must be at least" in capsys.readouterr().err
    assert cli.main(["check-config", "--offline", *LEAST, "--features", "a,a.b"]) == 78
    assert cli.main(["check-config", "--offline"]) == 78
    assert "`features`: must be set" in capsys.readouterr().err


def test_a_mistyped_variable_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPPCA_BATCHSIZE", "3")
    cli.main(["show-config", *LEAST])
    assert "DPPCA_BATCHSIZE is no setting" in capsys.readouterr().err


def test_an_unknown_error_is_not_quoted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(options: object) -> int:
        raise ValueError("the record was 987654")

    monkeypatch.setitem(cli._RUN, "show-config", fail)
    assert cli.main(["show-config"]) == 1
    text = capsys.readouterr().err
    assert "987654" not in text and "ValueError" in text


def test_no_broker_is_said_shortly() -> None:
    command = [sys.executable, "-m", "consumers.cli", "topics", *LEAST, "--bootstrap-servers",
               "127.0.0.1:1", "--request-timeout-s", "1"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), timeout=60)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr and "KafkaTimeoutError" in done.stderr

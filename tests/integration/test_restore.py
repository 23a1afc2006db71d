"""Backup and restore of the state topic, with the commands of docs/operations.md and real tools."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from consumers.cli.exits import EXIT_REFUSED
from demo.broker.base import KAFKA_VERSION
from demo.broker.jars import ensure_jars, fetch_jar, find_java

from ..support.harness import Model, model
from ..support.processes import PATIENCE_SECONDS, PATIENT_LEAVING, ROOT, wait_for
from .conftest import RunningBroker

TOOLS = {
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer.sh": "org.apache.kafka.tools.ConsoleProducer",
}
TOOLS_SHA256 = "62f3c5dd7aa3442d4c5bc6a95f86e2502178ea09de8e27f74d9563bf955e253c"
Run = Callable[[str, Model], None]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Kafka's own programs, from its jars."""
    jars, folder = ensure_jars(), tmp_path_factory.mktemp("bin")
    path = f"org/apache/kafka/kafka-tools/{KAFKA_VERSION}/kafka-tools-{KAFKA_VERSION}.jar"
    fetch_jar(folder, TOOLS_SHA256, path)
    for name, main in TOOLS.items():
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec {find_java()} -cp "{jars}/*:{folder}/*" {main} "$@"\n')
        script.chmod(0o755)
    return folder


@pytest.fixture
def run(programs: Path, tmp_path: Path) -> Run:
    def run(step: str, m: Model) -> None:
        page = (ROOT / "docs" / "operations.md").read_text()
        [commands] = re.findall(rf"```sh\n# {step}\n(.*?)```", page, re.DOTALL)
        assert "telemetry.dppca-state" in commands
        folders = [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
        subprocess.run(
            ["sh", "-euc", commands.replace("telemetry", m.name)],
            cwd=tmp_path,
            env={**os.environ, **m.environment, "PATH": os.pathsep.join(folders)},
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE_SECONDS,
            check=True,
        )

    return run


def serve(m: Model) -> None:
    """Serve until all that was sent is released."""
    instance = m.start(**PATIENT_LEAVING)
    m.finish(instance)
    assert instance.leave() == 0


def check_config(m: Model) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "consumers.cli", "check-config"]
    return subprocess.run(
        command, env={**os.environ, **m.environment}, cwd=ROOT, capture_output=True, text=True
    )


def refusal(m: Model) -> str:
    """What `check-config` says, and that `serve` ends with the same exit code."""
    done = check_config(m)
    assert done.returncode == EXIT_REFUSED, done
    instance = m.start(**PATIENT_LEAVING)
    assert instance.wait() == EXIT_REFUSED
    wait_for("the reason", lambda: "states are lost" in instance.text)
    return done.stderr


def delete(m: Model, *topics: str) -> None:
    with m.admin() as admin:
        admin.delete_topics(list(topics))
        wait_for("the deletion", lambda: not set(topics) & set(admin.list_topics()))


def test_backup_and_restore(broker: RunningBroker, fresh_name: Any, run: Run) -> None:
    settings = {"partitions": 2, "session_timeout_s": 6, "epsilon": 5, "delta": 1e-3}
    with model(broker.bootstrap_servers, fresh_name("restored"), **settings) as m:
        m.produce(50)
        instance = m.start(**PATIENT_LEAVING)
        instance.wait_until_ready("working")
        assert check_config(m).returncode == 0  # there is no state yet, and nothing is lost
        m.produce(470)
        m.finish(instance)
        assert check_config(m).returncode == 0
        assert instance.leave() == 0
        before = {out.value for out in m.outputs()}
        states = [one.value for one in m.stored()]
        run("back up", m)

        delete(m, m.state_topic)
        assert "states are lost" in refusal(m)  # before there is a topic, and with an empty one
        assert "states are lost" in refusal(m)
        run("restore", m)
        assert [one.value for one in m.stored()] == states
        m.produce(300)
        serve(m)
        assert m.check() == m.full_batches() == 8  # every record in one batch, one release of each
        assert before < {out.value for out in m.outputs()}

        # The backup is older than the last release now.
        delete(m, m.state_topic)
        m.create(m.state_topic, 1, **{"cleanup.policy": "compact"})
        with pytest.raises(subprocess.CalledProcessError):
            run("restore", m)  # it ends with check-config
        assert [one.value for one in m.stored()] == states
        assert "holds a later release" in refusal(m)
        # Without the releases, the offsets of the group are evidence enough.
        delete(m, m.output_topic)
        instance = m.start(**PATIENT_LEAVING)
        assert instance.wait() == EXIT_REFUSED
        wait_for("the reason", lambda: "the group has used partition" in instance.text)
        assert m.durable() == 5

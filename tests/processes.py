"""Real processes against a real broker, for the tests that kill them."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

from consumers.kafka.cluster import KafkaCluster
from consumers.kafka.config import KafkaConfig
from consumers.protocols import TopicInfo
from consumers.settings import Settings

from .helpers import FEATURES, as_json, check_output, rows

BATCH = 500
ROOT = Path(__file__).parents[2]
READERS: tuple[str, ...] = get_args(Settings.model_fields["reader"].annotation)


def wait_for(what: str, condition: Callable[[], Any], timeout_s: float = 40.0) -> Any:
    """The first true answer, or a failure that says what did not happen."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what}: not within {timeout_s:.0f} s")


class Instance:
    """`stream-dppca serve` in a process."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.events: list[dict[str, Any]] = []
        self.text = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.launch", "serve"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **environment},
            text=True,
        )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.text += line
            try:
                self.events.append(json.loads(line))
            except ValueError:
                self.events.append({"event": "text", "text": line})

    def saw(self, event: str, **fields: Any) -> bool:
        return any(
            e.get("event") == event and all(e.get(k) == v for k, v in fields.items())
            for e in list(self.events)
        )

    def wait_for(self, event: str, timeout_s: float = 40.0, **fields: Any) -> None:
        try:
            wait_for(f"event {event} {fields}", lambda: self.saw(event, **fields), timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; the log:\n{self.text[-5000:]}") from None

    def get(self, path: str) -> tuple[int, bytes]:
        port = next(e["port"] for e in self.events if e.get("event") == "listening")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_s: float = 30.0) -> int:
        code = self.process.wait(timeout_s)
        self._reading.join(5)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        self._reading.join(5)
        if self.process.stdout:
            self.process.stdout.close()


class Bench:
    """A model with topics of its own, the producers of its input, and its instances."""

    def __init__(self, servers: str, name: str, *, partitions: int = 1, shards: int = 1,
                 **settings: Any) -> None:  # fmt: skip
        from kafka import KafkaProducer

        self.name, self.partitions, self.shards = name, partitions, shards
        self.environment = {
            "DPPCA_BOOTSTRAP_SERVERS": servers,
            "DPPCA_INPUT_TOPIC": name,
            "DPPCA_FEATURES": ",".join(FEATURES),
            "DPPCA_EPSILON": "8",
            "DPPCA_DELTA": "1e-3",
            "DPPCA_BATCH_SIZE": str(BATCH),
            "DPPCA_HTTP_PORT": "0",
            "DPPCA_SHARDS": str(shards),
            "DPPCA_SESSION_TIMEOUT_S": "6",
            "DPPCA_PARTITION_REFRESH_S": "1",
            **{f"DPPCA_{key.upper()}": str(value) for key, value in settings.items()},
        }
        self.state_topic, self.output_topic = f"{name}.dppca-state", f"{name}.components"
        connection = {"bootstrap_servers": servers}
        self.log = KafkaCluster(
            KafkaConfig(
                connection=connection, group=f"stream-dppca.{name}", input_topic=name,
                state_topic=self.state_topic, output_topic=self.output_topic,
            )
        )  # fmt: skip
        self.log.create_topic(name, TopicInfo(partitions, {}), 1)
        self.producer = KafkaProducer(**connection, linger_ms=5)
        self.instances: list[Instance] = []
        self.produced = 0

    def produce(self, n: int) -> None:
        for row in rows(n, seed=self.produced):
            self.send(as_json(row))
        self.producer.flush()

    def send(self, value: bytes | None) -> None:
        partition = self.produced % self.partitions
        self.producer.send(self.name, value, key=b"k", partition=partition)
        self.produced += 1

    def start(self, **environment: str) -> Instance:
        instance = Instance({**self.environment, **environment})
        self.instances.append(instance)
        return instance

    def last_batches(self) -> dict[Any, int]:
        """Checks the whole output, and says how far each task is."""
        if self.log.topic(self.output_topic) is None:
            return {}
        return check_output(self.log, self.output_topic)

    def states(self) -> list[dict[str, Any]]:
        return [json.loads(record.value) for record in self.log.scan(self.state_topic)]

    def check_states(self) -> None:
        """Each task's batches in order, its positions forward only, one batch of slots each."""
        for task in range(self.shards):
            mine = [s for s in self.states() if s["task"] == task]
            assert [s["batch"] for s in mine] == list(range(1, len(mine) + 1))
            slots = [sum(offset for offset, _ in s["positions"].values()) for s in mine]
            assert slots == [BATCH * (i + 1) for i in range(len(mine))]
            for before, after in itertools.pairwise(mine):
                for p, at in before["positions"].items():
                    assert at <= after["positions"][p]

    def close(self) -> None:
        for instance in self.instances:
            instance.close()
        self.producer.close()


def bench(servers: str, name: str, **settings: Any) -> closing[Bench]:
    return closing(Bench(servers, name, **settings))

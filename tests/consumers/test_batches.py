"""Batches and slots of records do not depend on any record.

The same rows are put on topics of several partitions. Messages are padded with a member that nobody
reads, fetches are cut in other places, one partition is slowed down: the arrays that the estimator
gets stay the same bit for bit. The tests named `..._the_breach` fail on code without a
plan, in which rows are taken as they are fetched.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from consumers.kafka.cluster import KafkaCluster
from consumers.kafka.config import KafkaConfig
from consumers.kafka.configure import kafka_config
from consumers.protocols import Bounds, Chunk, Cluster, Reader
from consumers.service.loop import Service
from consumers.settings import load_settings
from stream_dppca import DPPCA
from tests.support.memory import MemoryBroker

from ..support.harness import READERS
from ..support.processes import PATIENCE_SECONDS, PATIENT_TRANSACTION, wait_for
from .helpers import (
    BATCH,
    ESTIMATOR,
    INPUT,
    as_json,
    cluster,
    drain,
    in_thread,
    memory_log,
    rows,
    start_task,
)

PARTITIONS, BATCHES = 3, 4
#: Not all partitions are of one length, and none is a multiple of a batch.
SHARE = (0, 1, 1, 2, 0, 1)


def padded(row: Sequence[float], i: int) -> bytes:
    """The same row, in a message whose size says something about it."""
    text = json.loads(as_json(row))
    return json.dumps({**text, "note": "x" * (20_000 if i % 50 == 7 else i % 97)}).encode()


def plain(row: Sequence[float], i: int) -> bytes:
    return as_json(row)


Encode = Callable[[Sequence[float], int], bytes]


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """All arrays that any estimator gets, in order."""
    given: list[np.ndarray] = []
    learn = DPPCA.learn_array

    def spy(self: DPPCA, X: Any) -> None:
        given.append(np.array(X))
        learn(self, X)

    monkeypatch.setattr(DPPCA, "learn_array", spy)
    return given


def taken(fed: list[np.ndarray]) -> np.ndarray:
    """The slots that were filled since the last call."""
    found = np.concatenate(fed)
    fed.clear()
    return found


# In memory


def filled(encode: Encode) -> MemoryBroker:
    on = cluster(PARTITIONS)
    for i, row in enumerate(rows(BATCHES * BATCH + 20)):
        on.produce(INPUT, encode(row, i), SHARE[i % len(SHARE)])
    return on


def test_fetch_limits_change_nothing(fed: list[np.ndarray]) -> None:
    drain(start_task(memory_log(filled(plain))))
    expected = taken(fed)
    assert len(expected) >= BATCHES * BATCH
    for most in (7, 64, 1000):
        drain(start_task(memory_log(filled(plain), max_records=most)))
        np.testing.assert_array_equal(taken(fed), expected)


@pytest.mark.parametrize("max_bytes", [1000, 50_000, 1 << 20])
def test_sizes_change_nothing(fed: list[np.ndarray], max_bytes: int) -> None:
    drain(start_task(memory_log(filled(plain))))
    expected = taken(fed)
    drain(start_task(memory_log(filled(padded), max_bytes=max_bytes)))
    np.testing.assert_array_equal(taken(fed), expected)


class Slowed:
    """A reader that delays the messages of one partition, and returns them in small pieces."""

    def __init__(self, reader: Reader, slow: int) -> None:
        self._reader, self._slow = reader, slow
        self._held: list[tuple[int, bytes | None]] = []
        self._reads = 0

    def partitions(self) -> frozenset[int]:
        return self._reader.partitions()

    def bounds(self, partitions: Sequence[int]) -> dict[int, Bounds]:
        return self._reader.bounds(partitions)

    def ends(self, partitions: Sequence[int]) -> dict[int, int]:
        return self._reader.ends(partitions)

    def assign(self, offsets: Mapping[int, int]) -> None:
        self._held.clear()
        self._reader.assign(offsets)

    def pause(self, partitions: Collection[int]) -> None:
        self._reader.pause(partitions)

    def read(self, timeout_s: float) -> list[Chunk]:
        chunks = []
        for chunk in self._reader.read(0.0 if self._held else timeout_s):
            if chunk.partition == self._slow:
                self._held += zip(chunk.offsets, chunk.values, strict=True)
            else:
                chunks.append(chunk)
        self._reads += 1
        if self._held and (self._reads % 5 == 0 or not chunks):
            now, self._held = self._held[:3], self._held[3:]
            chunks.append(Chunk(self._slow, *map(list, zip(*now, strict=True))))  # type: ignore[arg-type]
        return chunks

    def positions(self) -> dict[int, int]:
        at = self._reader.positions()
        return {**at, self._slow: self._held[0][0]} if self._held else at

    def close(self) -> None:
        self._reader.close()


def slow_down(cluster: Cluster, partition: int) -> Any:
    """A cluster whose readers are `Slowed`."""
    original = cluster.reader
    cluster.reader = lambda topic: Slowed(original(topic), partition)  # type: ignore[method-assign]
    return cluster


@pytest.mark.parametrize("slow", [0, 1])
def test_a_slow_partition_changes_nothing_the_breach(fed: list[np.ndarray], slow: int) -> None:
    drain(start_task(memory_log(filled(plain))))
    expected = taken(fed)
    drain(start_task(slow_down(memory_log(filled(plain)), slow)))
    np.testing.assert_array_equal(taken(fed), expected)


def test_far_ahead_is_paused(fed: list[np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory stays bounded: with little of it, the batches are the same."""
    drain(start_task(memory_log(filled(plain))))
    expected = taken(fed)
    monkeypatch.setattr("consumers.reading.batch_reader.AHEAD_ROWS", 40)
    task = start_task(slow_down(memory_log(filled(plain), max_records=20), 1))
    monkeypatch.setattr(task.input.reader, "_most_ahead", 40)
    most, paused = 0, set()
    read = task.input.reader.read

    def watch(timeout_s: float) -> bool:
        nonlocal most
        progress = read(timeout_s)
        most = max(most, task.input.reader._n_ahead)
        paused.add(task.input.reader._paused)
        return progress

    monkeypatch.setattr(task.input.reader, "read", watch)
    drain(task)
    np.testing.assert_array_equal(taken(fed), expected)
    assert most < 40 + 20 and any(0 in p for p in paused) and not any(1 in p for p in paused)


def test_what_retention_has_left_decides_no_batch_the_breach(fed: list[np.ndarray]) -> None:
    """Retention depends on sizes. A service that lags finds other first offsets if one message was
    larger, and must put the remaining records into the same batches and slots."""

    def resumed(*first: int) -> list[np.ndarray]:
        on = filled(plain)
        task = start_task(memory_log(on))
        drain(task, until=lambda: task._learner.n_batches == 1)
        task.close()
        fed.clear()
        for p, offset in enumerate(first):
            on.trim(INPUT, p, offset)
        drain(start_task(memory_log(on)))
        found = [batch.copy() for batch in fed]
        fed.clear()
        return found

    expected = resumed()
    assert len(expected) == BATCHES - 1
    for first in ((0, 230, 0), (150, 231, 75), (250, 400, 125)):
        found = resumed(*first)
        assert 0 < len(found) <= len(expected)  # batches of which nothing is left have no release
        for now, then in zip(found[::-1], expected[::-1], strict=False):
            gone = np.isnan(now).all(axis=1)
            assert not gone.all()
            np.testing.assert_array_equal(now[~gone], then[~gone])
    assert len(found) < len(expected)


def test_what_cannot_be_read_is_null_in_its_slot(fed: list[np.ndarray]) -> None:
    """Aborted transactions and compaction leave offsets without a message."""
    on = cluster()
    X = rows(2 * BATCH)
    for row in X:
        on.produce(INPUT, as_json(row))
    gone = [0, 5, 6, BATCH - 1, BATCH, 2 * BATCH - 2, 2 * BATCH - 1]
    for offset in gone:
        on.remove(INPUT, 0, offset)
    on.topics[INPUT].partitions[0].entries[7].status = "aborted"
    drain(start_task(memory_log(on)))
    null = np.isnan(taken(fed)).all(axis=1)
    assert np.flatnonzero(null).tolist() == sorted([*gone, 7])


def test_an_open_transaction_holds_the_plan_back(fed: list[np.ndarray]) -> None:
    on = cluster(2)
    for i, row in enumerate(rows(2 * BATCH)):
        on.produce(INPUT, as_json(row), i % 2)
    entry = on.topics[INPUT].partitions[0].entries[10]
    entry.status = "open"
    task = start_task(memory_log(on))
    drain(task)
    assert len(taken(fed)) == BATCH
    entry.status = "committed"
    drain(task)
    assert len(taken(fed)) == BATCH


def test_idle_partitions_do_not_stall_a_model(fed: list[np.ndarray]) -> None:
    on = cluster(20)
    for row in rows(BATCH):
        on.produce(INPUT, as_json(row), 13)
    drain(start_task(memory_log(on)))
    assert taken(fed).tolist() == rows(BATCH).tolist()


# On a broker


@contextmanager
def topic(servers: str, name: str, partitions: int, **configs: str) -> Iterator[Any]:
    """A topic, and a producer with which to fill it."""
    from kafka import KafkaAdminClient, KafkaProducer

    with KafkaAdminClient(bootstrap_servers=servers) as admin:
        made = {"num_partitions": partitions, "replication_factor": 1, "configs": configs}
        admin.create_topics({name: made})
        admin.wait_for_topics([name])
    producer = KafkaProducer(bootstrap_servers=servers, linger_ms=5)
    yield producer
    producer.close()


def service(servers: str, name: str, reader: str, **settings: Any) -> tuple[Service, Cluster]:
    s = load_settings(
        {
            **ESTIMATOR,
            "bootstrap_servers": servers,
            "input_topic": name,
            "http_port": 0,
            # A task that a busy machine drops would begin again: its batches would come twice.
            "reader": reader,
            "session_timeout_s": 600,
            "request_timeout_s": 120,
            **settings,
        }
    )
    made = KafkaCluster(kafka_config(s))
    return Service(s, made, watched=False), made


def run(it: Service, batches: int) -> None:
    done = it.metrics.batches._value
    with in_thread(it) as failed:
        wait_for(f"{batches} batches", lambda: failed or done.get() >= batches)
    assert it.metrics.dropped._value.get() == 0


CASES: dict[str, dict[str, Any]] = {
    "padded": {"encode": padded},
    "small polls": {"max_poll_records": 7},
    "small fetches": {"max_partition_fetch_bytes": 2048, "fetch_max_bytes": 4096},
    "fetches of 30 kB": {"max_partition_fetch_bytes": 30_000},
    "padded, fetches of 30 kB": {"encode": padded, "max_partition_fetch_bytes": 30_000},
    "a slow partition": {"slow": 1},
}


@pytest.mark.parametrize("reader", READERS)
def test_batches_on_a_broker_the_breach(
    broker: Any, fresh_name: Callable[[str], str], reader: str, fed: list[np.ndarray]
) -> None:
    servers = broker.bootstrap_servers
    X = rows(BATCHES * BATCH + 20)

    def batches(encode: Encode = plain, slow: int | None = None, **settings: Any) -> np.ndarray:
        name = fresh_name("batches")
        with topic(servers, name, PARTITIONS) as producer:
            for i, row in enumerate(X):
                partition = SHARE[i % len(SHARE)]
                producer.send(name, encode(row, i), partition=partition)
            producer.flush()
            it, cluster = service(servers, name, reader, **settings)
            if slow is not None:
                slow_down(cluster, slow)
            run(it, BATCHES)
        return taken(fed)[: BATCHES * BATCH]

    expected = batches()
    assert not np.isnan(expected).any()
    moved = {}  # slots that have another record
    for case, change in CASES.items():
        moved[case] = int((batches(**change) != expected).any(axis=1).sum())
    assert not any(moved.values()), f"of {len(expected)} slots: {moved}"


@pytest.mark.parametrize("reader", READERS)
def test_transactions_on_a_broker(
    broker: Any, fresh_name: Callable[[str], str], reader: str, fed: list[np.ndarray]
) -> None:
    """Control records and aborted messages are nulls; an open transaction holds back what follows
    it in its own partition only."""
    from kafka import KafkaProducer

    servers, name = broker.bootstrap_servers, fresh_name("transactions")
    X = rows(3 * BATCH)
    with topic(servers, name, 2) as plain_producer:
        producer = KafkaProducer(
            bootstrap_servers=servers, transactional_id=fresh_name("txn"), **PATIENT_TRANSACTION
        )
        producer.init_transactions()
        null = []
        offset = 0
        for k, start in enumerate(range(0, BATCH, 20)):  # 20 messages and a control record each
            producer.begin_transaction()
            for row in X[start : start + 20]:
                producer.send(name, as_json(row), partition=0)
            producer.flush()
            if k % 3 == 1:
                producer.abort_transaction()
                null += range(offset, offset + 20)
            else:
                producer.commit_transaction()
            null.append(offset + 20)
            offset += 21
        producer.begin_transaction()  # and one that stays open
        producer.send(name, as_json(X[0]), partition=0).get(PATIENCE_SECONDS)
        it, _ = service(servers, name, reader)
        done = it.metrics.batches._value
        with in_thread(it) as failed:
            wait_for("the first batch", lambda: failed or done.get() == 1)
            first = taken(fed)
            found = np.flatnonzero(np.isnan(first).all(axis=1)).tolist()
            assert found == [o for o in null if o < BATCH]
            for row in X[BATCH:]:  # the open transaction does not hold up another partition
                plain_producer.send(name, as_json(row), partition=1)
            plain_producer.flush()
            wait_for("the others", lambda: failed or done.get() == 3)
            assert np.isnan(taken(fed)).all(axis=1).sum() == len([o for o in null if o >= BATCH])
            producer.commit_transaction()
            for row in X[:BATCH]:
                plain_producer.send(name, as_json(row), partition=1)
            plain_producer.flush()
            wait_for("the rest", lambda: failed or done.get() == 4)
        producer.close()


def test_a_compacted_input_on_a_broker(
    broker: Any, fresh_name: Callable[[str], str], fed: list[np.ndarray]
) -> None:
    """Offsets that the cleaner has emptied are nulls, and the plan counts them."""
    servers, name = broker.bootstrap_servers, fresh_name("compacted")
    eager = {
        "cleanup.policy": "compact",
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.01",
    }
    X = rows(BATCH)
    with topic(servers, name, 1, **eager) as producer:
        for i, row in enumerate(X):
            producer.send(name, as_json(row), partition=0, key=b"%d" % (i % 200))
        producer.flush()

        def there() -> list[int]:
            producer.send(name, b"another segment", partition=0, key=b"%d" % (200 + len(sent)))
            producer.flush()
            sent.append(1)
            reader = KafkaCluster(config).reader(name)
            reader.assign({0: 0})
            found: list[int] = []
            end = reader.bounds([0])[0].end
            while reader.positions()[0] < end:
                for chunk in reader.read(0.2):
                    found += chunk.offsets
            reader.close()
            return found

        sent: list[int] = []
        config = KafkaConfig(
            connection={"bootstrap_servers": servers},
            group="",
            input_topic=name,
            state_topic="",
            output_topic="",
        )
        # The cleaner may come more than once. In the end the 100 that have newer ones are gone.
        kept = wait_for("the cleaner", lambda: (f := there()) and f[0] == BATCH - 200 and f)
        for reader in READERS:
            it, _ = service(servers, name, reader, model=fresh_name("m"), seed=1)
            run(it, 1)
            rest = ~np.isnan(taken(fed)[:BATCH]).all(axis=1)
            assert np.flatnonzero(rest).tolist() == [o for o in kept if o < BATCH]


@pytest.mark.parametrize("reader", READERS)
def test_partitions_that_are_added_are_planned(
    broker: Any, fresh_name: Callable[[str], str], reader: str, fed: list[np.ndarray]
) -> None:
    from kafka import KafkaAdminClient, KafkaProducer

    servers, name = broker.bootstrap_servers, fresh_name("added")
    X = rows(2 * BATCH)
    with topic(servers, name, 1) as producer:
        for row in X[:BATCH]:
            producer.send(name, as_json(row), partition=0)
        producer.flush()
        it, _ = service(servers, name, reader, partition_refresh_s=0.1)
        done = it.metrics.batches._value
        with in_thread(it) as failed:
            wait_for("the first batch", lambda: failed or done.get() == 1)
            with KafkaAdminClient(bootstrap_servers=servers) as admin:
                admin.create_partitions({name: 3})
            added = KafkaProducer(bootstrap_servers=servers)
            wait_for("the partitions", lambda: len(added.partitions_for(name)) == 3)
            for row in X[BATCH:]:
                added.send(name, as_json(row), partition=2)
            added.flush()
            added.close()
            wait_for("the second batch", lambda: failed or done.get() == 2)
        assert taken(fed).tolist() == X.tolist()

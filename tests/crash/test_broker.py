"""The broker crashes and comes back: the service goes on by itself."""

from __future__ import annotations

import random
import signal
import threading
import time

from consumers.demo.broker import LocalBroker

from .harness import BATCH, Fresh, Instance, model, wait_for


def test_the_broker_is_killed_under_load(
    killable: LocalBroker, servers: str, fresh_name: Fresh
) -> None:
    """An owner and a standby ride out a crash and a restart, without one of their own."""
    rng = random.Random()
    with model(servers, fresh_name("broker"), format="float32", partitions=2) as m:
        enough = threading.Event()

        def load() -> None:
            while not enough.wait(0.02):
                m.produce_packed(BATCH // 2)

        owner, standby = m.start(), m.start()
        loading = threading.Thread(target=load)
        loading.start()
        try:
            for end in (killable.kill, killable.stop):
                before = len(owner.events) + len(standby.events)
                wait_for("releases", lambda n=before: sum(
                    e["event"] == "released" for i in (owner, standby) for e in list(i.events)
                ) and len(owner.events) + len(standby.events) > n + 3)  # fmt: skip
                time.sleep(rng.uniform(0.0, 0.5))
                end()
                time.sleep(rng.uniform(0.0, 2.5))
                killable.start()
        finally:
            killable.start()
            enough.set()
            loading.join()

        def drained() -> bool:
            done = m.full_batches()[0]
            return any(
                i.saw("released", batch=done) or i.saw("published_again", batch=done)
                for i in (owner, standby)
            )

        try:
            wait_for(f"batch {m.full_batches()[0]}", drained, 60)
        except AssertionError as error:
            there = f"{m.ends()} of {[len(sent) for sent in m.slots]} messages are there"
            logs = "\n".join(f"{i.text[:1500]}\n...\n{i.text[-4000:]}" for i in (owner, standby))
            raise AssertionError(f"{error}; {there}; the logs:\n{logs}") from None
        assert owner.process.poll() is None and standby.process.poll() is None
        assert m.check() == m.full_batches()
        for instance in (owner, standby):
            try:
                wait_for("ready", lambda i=instance: i.get("/readyz")[0] == 200, 120)
            except AssertionError as error:
                raise AssertionError(f"{error}; its log:\n{instance.text[-6000:]}") from None


def test_sigterm_while_the_broker_is_away(
    killable: LocalBroker, servers: str, fresh_name: Fresh
) -> None:
    """At work, standing by and while starting: gone within 5 s. Code 75 says that a broker did not
    answer in time to close in order."""
    with model(servers, fresh_name("away")) as m:
        m.produce(3 * BATCH)
        owner = m.start()
        m.finish(owner)
        standby = m.start()
        standby.wait_for("group_changed", tasks=[])
        killable.kill()
        try:
            starting = m.start()
            starting.wait_for("listening")
            time.sleep(2)
            check_leaving(owner, standby, starting)
        finally:
            killable.start()
        last = m.start()
        m.produce(BATCH)
        m.finish(last)
        assert m.check() == m.full_batches()


def check_leaving(*instances: Instance) -> None:
    asked = time.monotonic()
    for instance in instances:
        instance.signal(signal.SIGTERM)
    codes = [instance.wait(10) for instance in instances]
    assert time.monotonic() - asked < 5
    assert set(codes) <= {0, 75}, [i.text[-1500:] for i in instances]

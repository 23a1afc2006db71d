"""Brokers for torture: three nodes that stand in for each other, one behind a proxy, one on a small
disk."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from demo.broker.local import LocalBroker
from demo.broker.node import free_port

from .proxy import LOOPBACK, Proxy

#: Short sessions, and transactions that are aborted soon.
SETTINGS = {
    "group.min.session.timeout.ms": "1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
DISK_MEGABYTES = 160


def single() -> LocalBroker:
    """One broker, to be killed."""
    return LocalBroker(settings=SETTINGS)


class Nodes:
    """Three brokers with three copies of everything."""

    def __init__(self) -> None:
        ports = [(free_port(), free_port()) for _ in range(3)]
        voters = ",".join(f"{n}@{LOOPBACK}:{own}" for n, (_, own) in enumerate(ports, 1))
        self.brokers = [
            LocalBroker(
                port=port,
                settings=SETTINGS
                | {
                    "node.id": str(n),
                    "listeners": f"PLAINTEXT://{LOOPBACK}:{port},CONTROLLER://{LOOPBACK}:{own}",
                    "controller.quorum.voters": voters,
                    "offsets.topic.replication.factor": "3",
                    "transaction.state.log.replication.factor": "3",
                    "transaction.state.log.min.isr": "2",
                    "min.insync.replicas": "2",
                    "leader.imbalance.check.interval.seconds": "3",  # leaders go back soon
                },
            )
            for n, (port, own) in enumerate(ports, 1)
        ]

    def __enter__(self) -> Nodes:
        with ThreadPoolExecutor(3) as pool:  # one node alone never becomes ready
            list(pool.map(LocalBroker.start, self.brokers))
        return self

    def __exit__(self, *_: object) -> None:
        for broker in self.brokers:
            broker.close()

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.bootstrap_servers for broker in self.brokers)


@contextlib.contextmanager
def behind_a_proxy() -> Iterator[tuple[LocalBroker, Proxy, str]]:
    """A broker, a proxy in front of it, and the address by which clients reach only the proxy."""
    port, inner, outer = free_port(), free_port(), free_port()
    controller = free_port()
    settings = SETTINGS | {
        "listeners": f"PLAINTEXT://{LOOPBACK}:{port},FAR://{LOOPBACK}:{inner},"
        f"CONTROLLER://{LOOPBACK}:{controller}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port},FAR://{LOOPBACK}:{outer}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,FAR:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.quorum.voters": f"1@{LOOPBACK}:{controller}",
    }
    with LocalBroker(port=port, settings=settings) as broker:
        proxy = Proxy(outer, inner)
        try:
            yield broker, proxy, f"{LOOPBACK}:{outer}"
        finally:
            proxy.close()


class SmallDisk:
    """A file system in memory, for the data of a broker. Mounting it requires root."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="stream-dppca-disk-"))
        size = f"size={DISK_MEGABYTES}m"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(self.path)], check=True)

    def broker(self) -> LocalBroker:
        """A broker whose data is here."""
        return LocalBroker(settings=SETTINGS, folder=self.path)

    def fill(self) -> None:
        """Fill the disk."""
        with (self.path / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(bytes(1 << 16))

    def empty(self) -> None:
        (self.path / "filler").unlink(missing_ok=True)

    def close(self) -> None:
        subprocess.run(["umount", "-l", str(self.path)], check=False)
        self.path.rmdir()

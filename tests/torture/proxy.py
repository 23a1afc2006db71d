"""A way to a broker that can be cut, as a network is."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

LOOPBACK = "127.0.0.1"


class Proxy:
    """Carries bytes between clients and one address, until it is cut.

    A cut is silent: connections stay open and carry nothing, as behind a firewall that drops
    packets. New ones are accepted and carry nothing either. After the cut, old connections are
    closed and new ones work.
    """

    def __init__(self, port: int, target: int) -> None:
        """
        Parameters
        ----------
        port
            Port to which clients connect.
        target
            Port of the broker.
        """
        self._target = target
        self._open = threading.Event()
        self._open.set()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server((LOOPBACK, port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        self._open.wait()
        try:
            broker = socket.create_connection((LOOPBACK, self._target))
        except OSError:
            client.close()
            return
        with self._lock:
            self._pairs.append((client, broker))
        for source, sink in ((client, broker), (broker, client)):
            threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._open.wait()
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        """Carry nothing until the block ends."""
        self._open.clear()
        try:
            yield
        finally:
            self._drop()
            self._open.set()

    def _drop(self) -> None:
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._open.set()
        self._listener.close()
        self._drop()

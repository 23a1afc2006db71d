"""A way to a broker that can be cut, as a network is."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

LOOPBACK = "127.0.0.1"
#: The key of requests for messages in Kafka's protocol.
FETCH = 1


class Proxy:
    """Carries bytes between clients and one address, until it is cut.

    A cut is silent: connections stay open and carry nothing, as behind a firewall that drops
    packets. New ones are accepted and carry nothing either. After the cut, old connections are
    closed and new ones work. Fetches of one topic can also be held back alone: then a client finds
    its brokers well, and gets no messages of it. A connection that has asked for the topic counts:
    later requests may leave out its name.
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
        self._fetching = threading.Event()
        self._fetching.set()
        self.topic: tuple[bytes, ...] = ()  #: bytes of which requests for the topic have some
        self._under_way: set[tuple[socket.socket, bytes]] = set()  # fetches without an answer
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
        for carry, source in ((self._ask, client), (self._answer, broker)):
            threading.Thread(target=carry, args=(source, client, broker), daemon=True).start()

    def _ask(self, source: socket.socket, client: socket.socket, broker: socket.socket) -> None:
        """Carry requests; those for messages may have to wait."""
        of_topic = False
        with contextlib.suppress(OSError):
            for frame in self._frames(source, client, broker):
                is_fetch = int.from_bytes(frame[4:6]) == FETCH
                of_topic |= is_fetch and any(some in frame for some in self.topic)
                if is_fetch and of_topic:
                    self._fetching.wait()
                    self._under_way.add((client, frame[8:12]))
                self._open.wait()
                broker.sendall(frame)

    def _answer(self, source: socket.socket, client: socket.socket, broker: socket.socket) -> None:
        """Carry answers, which have the numbers of their requests."""
        with contextlib.suppress(OSError):
            for frame in self._frames(source, client, broker):
                self._open.wait()
                client.sendall(frame)
                self._under_way.discard((client, frame[4:8]))

    def _frames(self, source: socket.socket, *ends: socket.socket) -> Iterator[bytes]:
        """Everything that comes, each with its length before it; then the connection is closed."""
        try:
            with source.makefile("rb") as stream:
                while len(size := stream.read(4)) == 4:
                    yield size + stream.read(int.from_bytes(size))
        finally:
            for fetch in self._under_way.copy():
                if fetch[0] in ends:
                    self._under_way.discard(fetch)
            self._shut(*ends)
            source.close()

    @staticmethod
    def _shut(*ends: socket.socket) -> None:
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def held(self) -> Iterator[Callable[[], bool]]:
        """Hold fetches of the topic back; the function tells if none is under way."""
        self._fetching.clear()
        try:
            yield lambda: not self._under_way
        finally:
            self._fetching.set()

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
            self._shut(*pair)

    def close(self) -> None:
        self._open.set()
        self._fetching.set()
        self._listener.close()
        self._drop()

"""The page without a browser: kept releases, access, and events."""

from __future__ import annotations

import base64
import datetime
import http.client
import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from consumers.model.releases import (
    PublishedRelease,
    Round,
    release_message,
)
from consumers.model.uncertainty import angle, loading_noise
from consumers.monitoring.http import HttpServer
from consumers.monitoring.metrics import Metrics
from consumers.protocols import Message
from consumers.service.loop import Service
from consumers.settings import Settings
from consumers.web import page as pages
from consumers.web import tracker as trackers
from consumers.web.follow import Follower
from consumers.web.page import Page
from consumers.web.server import WebServer
from consumers.web.tracker import Tracker
from stream_dppca import DPPCA, PerSubject, SubjectStatement
from tests.support.memory import MemoryBroker

from ..support.processes import wait_for
from .helpers import OUTPUT, cluster, memory_log, publish
from .test_releases import Fleet, released
from .test_service import Page as Status
from .test_service import log_of, settings

NOON = datetime.datetime(2030, 1, 1, 12, tzinfo=datetime.UTC)
TOKEN = "sixteen or more letters"  # noqa: S105


def message(release: PublishedRelease, minute: int = 0) -> Message:
    return release_message(release, NOON + datetime.timedelta(minutes=minute))


def test_a_tracker_keeps_what_a_page_shows() -> None:
    fleet, tracker = Fleet(), Tracker("m")
    assert tracker.release is None
    made = [fleet.learn(1) for _ in range(6)]
    assert all(tracker.add(message(release, i)) for i, release in enumerate(made))
    assert not tracker.add(message(made[-1], 5)), "published again"
    assert not tracker.add(message(made[2], 2)), "an old one again"
    assert not tracker.add(Message(b"", b"{}"))
    assert not tracker.add(message(made[-1].model_copy(update={"features": ("x",), "batch": 9})))
    other = made[-1].model_copy(update={"model": "another", "batch": 9})
    assert not tracker.add(message(other))
    count, found = tracker.history()
    assert count == 6 and [p.batch for p in found.points] == [1, 2, 3, 4, 5, 6]
    last, current = found.points[-1], found.current
    assert current is not None and current["features"] == fleet.NAMES
    weights = np.array(made[-1].components[0])
    cells = np.frombuffer(base64.b64decode(last.cells[0]), np.int8) / 127 * last.peaks[0]
    np.testing.assert_allclose(cells, weights, atol=last.peaks[0] / 250)
    np.testing.assert_allclose(current["components"][0]["loadings"], weights, rtol=1e-4)
    before = np.array(made[-2].components[0])
    assert last.moved == pytest.approx(angle(weights, before))
    assert last.time is not None and last.time == int(NOON.timestamp()) + 300
    assert tracker.history(after=count)[1].points == []
    # A lower number, made later: another model of the same name.
    assert tracker.add(message(made[0], 60))
    count, anew = tracker.history()
    assert anew.life == found.life + 1 and [p.batch for p in anew.points] == [1]


def test_a_tracker_of_a_large_model_keeps_fewer_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "MOST_CELLS", 300)
    tracker, release = Tracker("m"), released()
    for batch in range(1, 121):
        assert tracker.add(message(release.model_copy(update={"batch": batch}), batch))
    assert [p.batch for p in tracker.history()[1].points] == list(range(21, 121))


@pytest.mark.parametrize("k", [1, 2])
def test_the_noise_in_loadings_is_about_what_is_said(k: int) -> None:
    """With other records and other noise, loadings vary as estimated."""
    rng = np.random.default_rng(3)
    d, size = 6, 2000
    mixed, seen, said = rng.standard_normal((2, d)), [], []
    for seed in range(40):
        causes = rng.standard_normal((size * 5, 2)) * [1.5, 0.9]
        X = causes @ mixed + rng.standard_normal((size * 5, d))
        model = DPPCA(
            features=[*"abcdef"],
            epsilon=2.0,
            delta=1e-5,
            batch_size=size,
            n_components=k,
            seed=seed,
        )
        model.learn_array(X)
        assert model.last_release is not None
        release = PublishedRelease.of(model.last_release, "m")
        noise = loading_noise(release)
        assert noise is not None and noise.shape == (k, d)
        w = np.array(release.components[0])
        seen.append(w * np.sign(w @ seen[0]) if seen else w)
        said.append(noise[0])
    ratio = np.std(seen, axis=0) / np.mean(said, axis=0)
    assert 0.5 < np.sqrt(np.mean(ratio**2)) < 2.0, ratio


def test_the_noise_in_loadings_next_to_a_close_eigenvalue() -> None:
    """The last two features are independent: two eigenvalues of 1 next to one of 1.11."""
    mixed, inside = np.zeros((2, 8)), []
    mixed[0, :4], mixed[1, 4:6] = 1.0, 0.36
    for seed in range(12):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((50_000, 2)) @ mixed
        X += rng.standard_normal(X.shape) * ([0.55] * 4 + [1.0] * 4)
        how: dict[str, Any] = {"n_components": 2, "batch_size": len(X), "batches": 1}
        model = DPPCA(features=range(8), epsilon=1.0, delta=1e-6, seed=seed, **how)
        model.learn_array(X)
        assert model.last_release is not None
        noise, alone = (loading_noise(model.last_release, together) for together in (False, True))
        assert noise is not None and alone is not None and (alone <= noise).all()
        inside.append(np.abs(model.components[1, 6:]) < 2 * noise[1, 6:])
    assert np.mean(inside) > 0.7  # a third, if one value stands for all other eigenvalues


def test_with_privacy_per_subject_nothing_counts_records() -> None:
    """Neither lag nor messages nor records: they are secret in this mode."""
    on = MemoryBroker()
    on.create("in", 1)

    def facts(s: Settings) -> set[str]:
        service = Service(s, log_of(on, s), watched=False)
        service._task = Mock(fruitless=0, step_at=lambda: (0, 1))  # it is the owner
        return set(service.facts())

    by_device = settings(subject="device", round="1h", places=100, batch_size=None)
    assert facts(by_device) == {"state", "note"}
    assert facts(settings()) == {"state", "note", "lag", "needed", "step"}
    release = released()
    promise = SubjectStatement.of(
        PerSubject("device", places=1000), epsilon=1.0, delta=1e-6, method="adaptive", private=True
    ).in_time(3_600_000, "any 1h")
    hour = Round(start="2030-01-01T11:00:00+00:00", end="2030-01-01T12:00:00+00:00")
    tracker = Tracker("m")
    of_round = release.model_copy(
        update={"privacy": promise, "round": hour, "subjects": 41.7, "n_seen": None}
    )
    assert tracker.add(message(of_round))
    current = tracker.history()[1].current
    assert current is not None and "about 42 subjects" in current["extent"]
    assert "one subject (by device) sends in any 1h" in current["promise"]
    assert f"7 days {promise.epsilon_over['7 days']:.3g}" in current["promise"]
    assert "record" not in current["promise"]


# The server


@contextmanager
def served(token: str | None = None) -> Iterator[tuple[WebServer, Any]]:
    log = memory_log(cluster())
    tracker = Tracker("m")
    page = Page(Follower(log, OUTPUT, tracker), tracker, lambda: {"state": "working"})
    server = HttpServer("127.0.0.1", 0, Status(), Metrics(), page, token)
    try:
        yield server, log
    finally:
        server.close()


def get(server: WebServer, path: str, **headers: str) -> tuple[int, bytes, Any]:
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(), error.headers


class Events:
    """A reader of the stream of events."""

    def __init__(self, server: WebServer, path: str = "/events") -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=240)
        self._connection.request("GET", path)
        self.answer = self._connection.getresponse()

    def next(self, *wanted: str) -> Any:
        name = ""
        while True:
            line = self.answer.readline().decode().rstrip("\n")
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: ") and name in wanted:
                return json.loads(line.removeprefix("data: "))

    def close(self) -> None:
        self.answer.close()
        self._connection.close()


@pytest.mark.parametrize("path", ["/", "/metrics", "/component", "/livez", "/events"])
@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8321",
        "127.0.0.1.evil.example",
        "localhost.evil",
        "[::1",
        "",
        "a b",
        "127.0.0.1@evil.example:1",
        "1.2.3",
        "evil\xff",
    ],
)
def test_a_request_for_another_host_is_refused(host: str, path: str) -> None:
    """As after DNS rebinding: the page of another site, whose name points to this address."""
    with served() as (server, _):
        code, body, _ = get(server, path, Host=host)
        assert code == 421 and b"http_hosts" in body


def test_our_own_names_are_answered() -> None:
    page = Page(Follower(memory_log(cluster()), OUTPUT, Tracker("m")), Tracker("m"), dict)
    with closing(HttpServer("127.0.0.1", 0, Status(), Metrics(), page, None, ["M.Example"])) as one:
        for host in (
            "localhost",
            "LOCALHOST:1",
            "127.0.0.1",
            "10.2.3.4:8321",
            "[::1]:80",
            "[fe80::1]",
            "m.example",
            "M.EXAMPLE.:8321",
        ):
            assert get(one, "/metrics", Host=host)[0] == 200, host
        with socket.create_connection(("127.0.0.1", one.port)) as old:
            old.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert old.makefile("rb").readline().split()[1] == b"200"
        with socket.create_connection(("127.0.0.1", one.port)) as two:
            two.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n")
            assert two.makefile("rb").readline().split()[1] == b"421"


def test_the_stream_of_events() -> None:
    with served() as (server, log), closing(Events(server)) as events:
        assert events.next("facts")["state"] == "working"
        assert events.next("history")["current"] is None
        publish(log, [message(released(batch=1))])
        release = events.next("release")
        assert release["current"]["batch"] == 1 and len(release["points"]) == 1
        publish(log, [message(released(batch=2), 1), message(released(batch=3), 2)])
        points: list[int] = []
        while points != [2, 3]:
            points += [p["batch"] for p in events.next("release")["points"]]
        # The model was reset.
        publish(log, [message(released(batch=1), 3)])
        history = events.next("history")
        assert history["current"]["batch"] == 1 and len(history["points"]) == 1


def test_what_is_far_back_on_a_shared_topic_is_found() -> None:
    with served() as (server, log):
        publish(log, [message(released())])
        noise = Message(b"another", b"{}")
        publish(log, [noise] * 1500)
        with closing(Events(server)) as events:
            while (found := events.next("history", "release"))["current"] is None:
                pass
        assert found["current"]["batch"] == 1


def test_there_are_only_so_many_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST_READERS", 1)
    with served() as (server, _):
        with closing(Events(server)) as events:
            events.next("history")
            assert get(server, "/events")[0] == 503

        # A place is free again once the server notices that nobody reads.
        def free() -> bool:
            with closing(Events(server)) as again:
                return again.answer.status == 200

        wait_for("a free place", free)


def test_pages_are_strict_about_what_a_browser_may_do() -> None:
    with served() as (server, _):
        for path in pages.FILES:
            code, body, headers = get(server, path)
            assert code == 200 and body, path
            policy = headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy and "unsafe" not in policy
            assert headers["X-Content-Type-Options"] == "nosniff"
        html = get(server, "/")[1].decode()
        assert "http://" not in html and "https://" not in html and "style=" not in html
        assert get(server, "/../server.py")[0] == get(server, "/static/page.js")[0] == 404
        assert b"/metrics" not in get(server, "/metrics")[1], "only a server with probes names them"
        assert get(server, "/component")[1] == b"{}"


def test_a_token_is_asked_for() -> None:
    with served(TOKEN) as (server, _):
        assert get(server, "/livez")[0] == get(server, "/readyz")[0] == 200  # probes have none
        for path in ("/", "/page.js", "/component", "/metrics", "/events", "/nothing"):
            code, body, headers = get(server, path)
            assert (code, body) == (401, b"a token is needed\n")
            assert headers["WWW-Authenticate"].startswith("Basic realm=")
        wrong = (
            "Bearer ",
            f"Bearer {TOKEN[:-1]}",
            f"Basic {TOKEN}",
            TOKEN,
            "Basic",
            "Basic é",
            password("any", TOKEN[:-1]),
            password(TOKEN, ""),
            f"Digest {TOKEN}",
        )
        for given in wrong:
            assert get(server, "/component", Authorization=given)[0] == 401
        for right in (f"Bearer {TOKEN}", password("any", TOKEN), password("", TOKEN)):
            assert get(server, "/component", Authorization=right)[0] == 200


def password(name: str, token: str) -> str:
    """What a browser sends once it has asked."""
    return "Basic " + base64.b64encode(f"{name}:{token}".encode()).decode()


def test_a_long_header_takes_no_time() -> None:
    with served(TOKEN) as (server, _):
        for text in ("\\" * 60_000, "a:" * 30_000, "=" * 60_000, "QUFB" * 15_000):
            began = time.process_time()
            assert get(server, "/metrics", Authorization=f"Basic {text}")[0] == 401
            assert time.process_time() - began < 1


def test_nothing_can_be_posted() -> None:
    with served() as (server, _):
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("POST", "/", b"x")
        assert connection.getresponse().status == 501
        connection.close()

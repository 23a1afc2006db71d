"""The live page in a real browser: it renders, updates, survives a restart, and never complains."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import pytest

from consumers.model.releases import PublishedRelease, release_message
from consumers.service.loop import Service
from consumers.settings import Settings, load_settings
from consumers.web.follow import Follower
from consumers.web.page import Page
from consumers.web.server import WebServer
from consumers.web.tracker import Tracker
from demo.broker.node import free_port
from demo.telemetry import FEATURES, telemetry
from stream_dppca import DPPCA, Limit
from tests.support.memory import MemoryBroker, MemoryCluster

from ..consumers.helpers import in_thread, publish
from ..support.processes import wait_for
from .conftest import Browser

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]  # one browser is enough

TOPIC = "fleet.components"
TOKEN = "a token that nobody guesses"  # noqa: S105
#: Would draw a picture, and complain about it, if it were ever taken for markup.
HOSTILE = "<img src=x onerror=alert(1)>"


class Releases:
    """A page of made releases, in memory."""

    def __init__(self) -> None:
        broker = MemoryBroker()
        broker.create(TOPIC, 1)
        self.log = MemoryCluster(
            broker, group="g", state_topic="s", input_topic="i", output_topic=TOPIC
        )
        self.at = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=59, seconds=20)

    def publish(self, *releases: PublishedRelease) -> None:
        for release in releases:
            self.at = min(
                self.at + datetime.timedelta(minutes=1), datetime.datetime.now(datetime.UTC)
            )
            publish(self.log, [release_message(release, self.at)])

    @contextmanager
    def served(
        self, token: str | None = None, facts: Callable[[], dict[str, Any]] = dict
    ) -> Iterator[str]:
        tracker = Tracker("fleet")
        page = Page(Follower(self.log, TOPIC, tracker), tracker, facts)
        server = WebServer("127.0.0.1", 0, page, token=token)
        try:
            yield f"http://127.0.0.1:{server.port}/"
        finally:
            server.close()


def fleet(batches: int, change_after: int | None = None, k: int = 3) -> list[PublishedRelease]:
    """Real releases of simulated telemetry."""
    size = 4000
    model = DPPCA(features=FEATURES, epsilon=1.0, delta=1e-6, batch_size=size, n_components=k)
    found = []
    for X in islice(telemetry(seed=1, chunk=size, change_after=change_after), batches):
        model.learn_array(X)
        assert model.last_release is not None
        found.append(PublishedRelease.of(model.last_release, "fleet"))
    return found


def wide(like: PublishedRelease, batch: int, d: int = 1000) -> PublishedRelease:
    """A release of many features, with made loadings."""
    names = tuple(f"rack{j // 40:02d}.sensor{j % 40:02d}" for j in range(d))
    w = np.random.default_rng(1).standard_normal((1, d)) * np.linspace(1.5, 0.2, d)
    w = w + 0.05 * np.random.default_rng(batch).standard_normal((1, d))
    w /= np.linalg.norm(w)
    ones = (1.0,) * d
    return like.model_copy(
        update={
            "features": names,
            "components": (tuple(w[0].tolist()),),
            "batch": batch,
            "drift": batch == 30,
            "spread": (0.3 * d,),
            "explained_variance_ratio": (0.3,),
            "explained_variance_ratio_sd": (0.01,),
            "center": ones,
            "scale": ones,
            "clamp": ones,
            "mean": ones,
            "deviation": ones,
        }
    )


def test_it_shows_a_model(browser: Browser) -> None:
    made = fleet(60, change_after=35 * 4000, k=1)
    assert any(release.drift for release in made)
    releases = Releases()
    releases.publish(*made[:-1])
    with releases.served() as url:
        browser.driver.get(url)
        wait_for("the release", lambda: browser.text("batch") == "59")
        assert browser.hidden("beyond")
        assert browser.text("model") == "fleet"
        assert browser.text("status") == "learned"
        assert browser.text("meaning").startswith("What varies most")
        assert "(ε = 1)" in browser.text("promise") and "1e-06 (δ)" in browser.text("promise")
        assert browser.text("age").endswith("ago") and "about" in browser.text("next")
        assert browser.hidden("waiting") and not browser.hidden("charts")
        rows = "#loadings > div:not([hidden]) "
        names = browser.run(
            f"return [...document.querySelectorAll('{rows}.name')].map(e => e.textContent)"
        )
        weights = dict(zip(FEATURES, made[-2].components[0], strict=True))
        assert names == sorted(weights, key=lambda name: -abs(weights[name]))
        whiskers = f"return document.querySelectorAll('{rows}.whisker:not([hidden])').length"
        assert browser.run(whiskers) == len(FEATURES)
        assert browser.run("return document.querySelectorAll('#scree > div').length") == 2
        assert browser.run("return document.querySelectorAll('.uplot canvas').length") == 3
        size = browser.run("const c = document.getElementById('heat'); return [c.width, c.height]")
        learned = sum(bool(release.components) for release in made[:-1])
        assert size == [learned, len(FEATURES)]
        # The next release comes by itself.
        releases.publish(made[-1])
        wait_for("the next release", lambda: browser.text("batch") == "60")
        # No request went to another site.
        asked = browser.run("return performance.getEntriesByType('resource').map(e => e.name)")
        assert len(asked) >= 5 and all(name.startswith(url) for name in asked)
        assert browser.complaints() == []
        browser.shoot("page-light")
        browser.shoot("page-top", 620)
        browser.screen(1280, 900, dark=True)
        shade = "return getComputedStyle(document.body).backgroundColor"
        wait_for("dark", lambda: browser.run(shade) == "rgb(14, 19, 26)")
        browser.shoot("page-dark")
        browser.screen(390, 844)
        wait_for(
            "a phone",
            lambda: browser.run(
                "return innerWidth == 390 && document.documentElement.scrollWidth <= 390"
            ),
        )
        browser.shoot("page-phone")
        assert browser.complaints() == []


def test_several_components(browser: Browser) -> None:
    made = fleet(5)
    releases = Releases()
    releases.publish(*made)
    with releases.served() as url:
        browser.driver.get(url)
        wait_for("the release", lambda: browser.text("batch") == "5")
        assert browser.run("return document.querySelectorAll('#scree > div').length") == 4
        browser.run("document.querySelectorAll('#tabs button')[1].click()")
        second = zip(map(abs, made[-1].components[1]), FEATURES, strict=True)
        largest = max(second)[1]
        wait_for(
            "the second component",
            lambda: (
                browser.run("return document.querySelector('#loadings .name').textContent")
                == largest
            ),
        )
        assert browser.complaints() == []


def test_limits_spectrum_and_records_beyond_a_limit(browser: Browser) -> None:
    """A page that shows records says so; texts of records are only ever text."""
    made = fleet(5, k=1)
    given = {"spe": ((0.1, 20.0), (0.01, 31.5)), "t2": ((0.01, 6.6),)}
    limits = {
        name: tuple(Limit(rate=rate, value=value, sd=0.5) for rate, value in at)
        for name, at in given.items()
    }
    more = {"eigenvalues": (4.2, 1.5, 1.1), "eigenvalues_sd": (0.1, 0.05, 0.05)}
    releases = Releases()
    releases.publish(*made[:3])
    releases.publish(*(r.model_copy(update={"limits": limits, **more}) for r in made[3:]))
    alarm = {
        "key": HOSTILE,
        "beyond": 155,
        "seen": 156,
        "contributions": [["fan_rpm", -64.2], ["temperature_c", 21.0]],
    }
    beyond: dict[str, Any] = {"share": None, "rate": 0.02, "alarms": []}
    with releases.served(facts=lambda: {"state": "scoring", "beyond": beyond}) as url:
        browser.driver.get(url)
        wait_for("the release", lambda: browser.text("batch") == "5")
        assert browser.run("return document.querySelectorAll('#spectrum > div').length") == 3
        assert browser.run("return document.querySelectorAll('#spectrum .other').length") == 2
        assert "3 stand out, 1 is learned" in browser.text("spectrum-note")
        table = browser.text("limits-table")
        assert "1 % of the records exceed" in table and "31.5 ± 1" in table and "6.6 ± 1" in table
        assert not browser.hidden("limits") and not browser.hidden("beyond")
        assert "± 2 sd of noise and sampling" in browser.text("loadings-card")
        assert "NOT PRIVATE" in browser.text("beyond") and "Not yet known" in browser.text("beyond")
        beyond |= {"share": 0.05, "alarms": [alarm]}
        wait_for("the flag", lambda: "155 of 156 records" in browser.text("alarms"))
        assert "fan_rpm too low" in browser.text("alarms") and HOSTILE in browser.text("alarms")
        assert "5.0 % of the last records; at most 2.0 %" in browser.text("beyond-share")
        beyond |= {"rate": 0.0}
        wait_for("no limit", lambda: "nothing is compared" in browser.text("beyond-share"))
        assert "Not private" in browser.text("public")
        assert browser.run("return document.images.length") == 1
        browser.shoot("page-score")
        browser.screen(390, 844)
        wait_for(
            "a phone",
            lambda: browser.run(
                "return innerWidth == 390 && document.documentElement.scrollWidth <= 390"
            ),
        )
        assert browser.complaints() == []


def test_a_thousand_features(browser: Browser) -> None:
    releases = Releases()
    like = fleet(6, k=1)[-1]
    releases.publish(*(wide(like, batch) for batch in range(7, 47)))
    with releases.served() as url:
        browser.driver.get(url)
        wait_for("the release", lambda: browser.text("batch") == "46")
        rows = "return document.querySelectorAll('#loadings > div:not([hidden])').length"
        assert browser.run(rows) == 16
        browser.run("document.getElementById('more').click()")
        browser.run("document.getElementById('heat-all').click()")
        wait_for("all of them", lambda: browser.run(rows) == 1000)
        size = browser.run("const c = document.getElementById('heat'); return [c.width, c.height]")
        assert size == [40, 1000]
        browser.shoot("page-wide")
        browser.run(
            "const f = document.getElementById('filter'); f.value = 'rack03.sensor1';"
            "f.dispatchEvent(new Event('input'))"
        )
        assert browser.run(rows) == 10
        releases.publish(wide(like, 47))
        wait_for("the next release", lambda: browser.text("batch") == "47")
        browser.screen(390, 844, dark=True)
        wait_for(
            "a phone",
            lambda: browser.run(
                "return innerWidth == 390 && document.documentElement.scrollWidth <= 390"
            ),
        )
        assert browser.complaints() == []


def test_before_anything_is_learned(browser: Browser) -> None:
    releases = Releases()
    learned = fleet(4)[-1]
    unknown = {
        "components": (),
        "spread": None,
        "explained_variance_ratio": None,
        "explained_variance_ratio_sd": None,
    }
    starting = learned.model_copy(
        update=unknown | {"status": "starting", "batch": 1, "first_batches": 3}
    )
    reason = "almost all records are zero or null"
    nothing = learned.model_copy(
        update=unknown | {"status": "nothing_learned", "batch": 2, "reason": reason}
    )
    at = {"state": "working", "note": "", "lag": 7, "needed": 100, "step": [1, 5]}
    with releases.served(TOKEN, lambda: at) as url:
        browser.give_password(TOKEN)
        browser.driver.get(url)
        wait_for("nothing yet", lambda: not browser.hidden("waiting"))
        assert browser.text("waiting-title") == "Waiting for the first release"
        wait_for("a connection", lambda: browser.text("live") == "live")
        wait_for("the first step", lambda: "batch 2 of 5" in browser.text("waiting-text"))
        browser.shoot("page-first-step")
        releases.publish(starting)
        wait_for("the questions", lambda: browser.text("status") == "starting")
        assert browser.text("waiting-title") == "Starting: 1 of 3"
        assert browser.hidden("charts")
        releases.publish(nothing)
        wait_for("nothing", lambda: browser.text("status") == "nothing learned yet")
        assert "almost all records are zero or null" in browser.text("waiting-text")
        releases.publish(learned)
        wait_for("a component", lambda: browser.text("status") == "learned")
        assert not browser.hidden("charts") and browser.hidden("waiting")
        assert browser.complaints() == []


# The page of the service

NAMES = ("cpu", HOSTILE, "disk.read")


def settings(port: int) -> Settings:
    return load_settings(
        {
            "features": NAMES,
            "epsilon": 8.0,
            "delta": 1e-3,
            "batch_size": 300,
            "nested": False,
            "center": "none",
            "scales": "none",
            "input_topic": "in",
            "model": "m",
            "http_port": port,
            "partition_refresh_s": 0.1,
        }
    )


@contextmanager
def running(broker: MemoryBroker, port: int) -> Iterator[Service]:
    s = settings(port)
    names = ("group", "state_topic", "input_topic", "output_topic")
    log = MemoryCluster(broker, **{name: getattr(s, name) for name in names})
    service = Service(s, log, watched=False)
    with in_thread(service):
        yield service


def feed(broker: MemoryBroker, n: int) -> None:
    import json

    for row in (np.random.default_rng().standard_normal((n, 3)) * [3.0, 1.0, 0.3]).tolist():
        broker.produce("in", json.dumps(dict(zip(NAMES, row, strict=True))).encode())


def test_it_survives_a_restart_of_the_service(browser: Browser) -> None:
    broker = MemoryBroker()
    broker.create("in", 1)
    feed(broker, 3 * 300 + 120)
    port = free_port()  # that no outgoing connection takes while the service is away
    with running(broker, port) as service:
        wait_for("three batches", lambda: service.metrics.batches._value.get() == 3)
        browser.driver.get(f"http://127.0.0.1:{port}/")
        wait_for("the release", lambda: browser.text("batch") == "3")
        wait_for("its state", lambda: browser.text("state") == "working")
        wait_for("the lag", lambda: browser.text("lag") == "lag: 120 messages")
        assert browser.text("next-note") == "120 of 300 messages are there"
        shown = browser.run("return document.getElementById('loadings').textContent")
        assert HOSTILE in shown and browser.run("return document.images.length") == 1
        assert browser.complaints() == []
        feed(broker, 300)
        wait_for("the next release", lambda: browser.text("batch") == "4")
    wait_for("that it is gone", lambda: "connection lost" in browser.text("live"))
    assert browser.text("batch") == "4"
    with running(broker, port):
        wait_for("it again", lambda: browser.text("live") == "live")
        wait_for("its state", lambda: browser.text("state") == "working")
        feed(broker, 300)
        wait_for("a new release", lambda: browser.text("batch") == "5")
    # While nothing listened the browser itself said that it could not connect; no script failed.
    assert all("net::ERR" in line for line in browser.complaints())


def test_the_page_does_not_depend_on_what_a_release_calls_itself(browser: Browser) -> None:
    """Whatever is on the topic, it is shown as text or not at all."""
    releases = Releases()
    learned: Any = fleet(4, k=1)[-1]
    odd = learned.model_copy(update={"status": "skipped", "reason": HOSTILE, "batch": 5})
    releases.log.broker.produce(TOPIC, b"not a release")
    releases.publish(learned, odd)
    with releases.served() as url:
        browser.driver.get(url)
        wait_for("the release", lambda: browser.text("status") == "last batch skipped")
        assert HOSTILE in browser.run("return document.getElementById('status').title")
        assert browser.run("return document.images.length") == 1
        assert browser.complaints() == []

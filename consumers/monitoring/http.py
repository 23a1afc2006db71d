"""Serves the page, /livez, /readyz, /metrics, /component and /facts from a thread.

| path | 200 | 503 |
|---|---|---|
| `/` | the live page of the model (`consumers.web`) | |
| `/livez` | it works, or may recover by itself | it will not recover: restart |
| `/readyz` | its work gets further, or there is none | joining, starting, leaving, no progress |
| `/metrics` | Prometheus text | |
| `/component` | the current release | none yet |
| `/facts` | what the page says about this process, as JSON | |

With `http_token`, all paths except `/livez` and `/readyz`, which show nothing of the model, require
the token.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, Final, Protocol

import msgspec

from ..events import log_event
from ..web.page import Page
from ..web.server import TEXT, Answer, WebServer

#: Paths for probes, which have no token.
OPEN_PATHS: Final = ("/livez", "/readyz")


class Status(Protocol):
    """The state of the service, as the pages show it."""

    def alive(self) -> bool: ...

    def ready(self) -> tuple[bool, str]: ...

    def component(self) -> bytes | None: ...

    def facts(self) -> dict[str, Any]: ...


class Rendered(Protocol):
    """Metrics in the text format of Prometheus."""

    def render(self) -> bytes: ...


class HttpServer(WebServer):
    """Serves the pages of a service until `close` is called."""

    def __init__(
        self,
        host: str,
        port: int,
        status: Status,
        metrics: Rendered,
        page: Page | None = None,
        token: str | None = None,
        hosts: Collection[str] = (),
    ) -> None:
        def routes(path: str) -> Answer:
            return _answer(path, status, metrics)

        super().__init__(host, port, page, routes, token, OPEN_PATHS, hosts)
        shown = f"[{host}]" if ":" in host else host
        log_event("listening", host=host, port=self.port, page=f"http://{shown}:{self.port}/")


def _answer(path: str, status: Status, metrics: Rendered) -> Answer:
    data = "application/json"
    if path == "/livez":
        alive = status.alive()
        return Answer(200, TEXT, b"alive\n") if alive else Answer(503, TEXT, b"stalled\n")
    if path == "/readyz":
        ready, why = status.ready()
        return Answer(200 if ready else 503, TEXT, f"{why}\n".encode())
    if path == "/metrics":
        return Answer(200, "text/plain; version=0.0.4; charset=utf-8", metrics.render())
    if path == "/component":
        found = status.component()
        if found is None:
            error = json.dumps({"error": "no release yet, or this is a standby"})
            return Answer(503, data, error.encode())
        return Answer(200, data, found)
    if path == "/facts":
        return Answer(200, data, msgspec.json.encode(status.facts()))
    return Answer(404, TEXT, b"/livez /readyz /metrics /component /facts\n")

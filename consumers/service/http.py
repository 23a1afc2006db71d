"""Serves /livez, /readyz, /metrics and /component from a thread.

| path | 200 | 503 |
|---|---|---|
| `/livez` | the loop makes progress | no progress for `stall_timeout_s`: restart |
| `/readyz` | runs a task, or stands by | joining, starting or leaving |
| `/metrics` | Prometheus text | |
| `/component` | the current release (`?task=1`; merged if there is one) | none yet |
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from ..errors import ConfigurationError
from .metrics import Metrics

__all__ = ["HttpServer", "Status"]


class Status(Protocol):
    """The state of the service, as the pages show it."""

    def alive(self) -> bool: ...

    def ready(self) -> tuple[bool, str]: ...

    def component(self, task: str | None) -> bytes | None: ...


class HttpServer:
    """Serves the pages until `close` is called."""

    def __init__(self, host: str, port: int, status: Status, metrics: Metrics) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = 5

            def do_GET(self) -> None:
                code, kind, body = _answer(self.path, status, metrics)
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except OSError as error:
            raise ConfigurationError(
                f"http_host and http_port: cannot listen at {host}:{port} ({error.strerror}). "
                "Is another instance running on this machine? http_port=0 takes any free port."
            ) from None
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="http", daemon=True, args=(0.2,)
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _answer(path: str, status: Status, metrics: Metrics) -> tuple[int, str, bytes]:
    url = urlsplit(path)
    text, data = "text/plain; charset=utf-8", "application/json"
    if url.path == "/livez":
        alive = status.alive()
        return (200, text, b"alive\n") if alive else (503, text, b"stalled\n")
    if url.path == "/readyz":
        ready, why = status.ready()
        return 200 if ready else 503, text, f"{why}\n".encode()
    if url.path == "/metrics":
        return 200, "text/plain; version=0.0.4; charset=utf-8", metrics.render()
    if url.path == "/component":
        task = parse_qs(url.query).get("task", [None])[0]
        found = status.component(task)
        if found is None:
            return (
                503,
                data,
                json.dumps({"error": "no release yet, or the task does not run here"}).encode(),
            )
        return 200, data, found
    return 404, text, b"/livez /readyz /metrics /component\n"

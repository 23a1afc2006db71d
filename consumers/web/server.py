"""An HTTP server for the page of a model, and for all other paths that its owner serves.

With a token, all paths except the open ones require it: as `Authorization: Bearer`, or as the
password of `Authorization: Basic`, which browsers ask for. Comparisons take the same time whatever
is compared.

A request must be for one of our own names: for localhost, an IP address, or a host that was
declared. Otherwise a page of another site could read from this one: its owner lets the site's name
point to our address (DNS rebinding), and browsers then take both for the same site. An address
needs no such rule, because nobody can make it point elsewhere.

Browsers are told to load nothing from other sites, to run only the scripts of this server, and to
show the page in no frame.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import threading
from collections.abc import Callable, Collection, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from ..errors import ConfigurationError
from .page import Page

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
TEXT: Final = "text/plain; charset=utf-8"
#: Makes a browser ask for a name, which may be any, and a password, which is the token.
ASK: Final = {"WWW-Authenticate": 'Basic realm="the token of stream-dppca", charset="UTF-8"'}


class Answer(NamedTuple):
    """An answer to a request."""

    code: int
    kind: str
    body: bytes
    headers: Mapping[str, str] = {}


#: Answers a path, or leaves it to the page.
Routes = Callable[[str], Answer | None]


class WebServer:
    """Serves until `close` is called.

    Parameters
    ----------
    host, port
        Address to listen at; port 0 takes any free port.
    page
        The page at `/`; None for no page.
    routes
        Answers all other paths.
    token
        The secret that readers must give; None if everybody may read.
    open_paths
        Paths that need no token.
    hosts
        Names of this host by which requests may address it, besides localhost and IP addresses.
    """

    def __init__(
        self,
        host: str,
        port: int,
        page: Page | None,
        routes: Routes = lambda path: None,
        token: str | None = None,
        open_paths: Collection[str] = (),
        hosts: Collection[str] = (),
    ) -> None:
        server = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 5

            def do_GET(self) -> None:
                server._get(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._page, self._routes, self._token = page, routes, token
        self._hosts = frozenset({"localhost", *(host.lower() for host in hosts)})
        self._open = frozenset(open_paths)
        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except OSError as error:
            raise ConfigurationError(
                f"http_host and http_port: cannot listen at {host}:{port} ({error.strerror}). "
                "Is another instance running on this machine? Give this one another port with "
                "--http-port; 0 takes any free port."
            ) from None
        self.port = int(self._server.server_address[1])
        serve = self._server.serve_forever
        threading.Thread(target=serve, name="http", daemon=True, args=(0.2,)).start()

    def close(self) -> None:
        if self._page is not None:
            self._page.close()
        self._server.shutdown()
        self._server.server_close()

    def _get(self, request: BaseHTTPRequestHandler) -> None:
        hosts = request.headers.get_all("Host") or ["localhost"]  # HTTP/1.0 has none
        path = _path(request.path)
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            body = b"this name of the host is not declared: see the setting http_hosts\n"
            self._send(request, Answer(421, TEXT, body))
        elif path not in self._open and not self._may_read(request):
            self._send(request, Answer(401, TEXT, b"a token is needed\n", ASK))
        elif path == "/events" and self._page is not None:
            self._stream(request, self._page)
        else:
            self._send(request, self._answer(path))

    def _is_ours(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host.strip()}").hostname or "").removesuffix(".")
            return name in self._hosts or bool(ipaddress.ip_address(name))
        except ValueError:
            return False

    def _answer(self, path: str) -> Answer:
        found = self._page.file(path) if self._page is not None else None
        if found is not None:
            return Answer(200, *found)
        return self._routes(path) or Answer(404, TEXT, b"there is no such page\n")

    def _stream(self, request: BaseHTTPRequestHandler, page: Page) -> None:
        if not page.begin_reading():
            self._send(request, Answer(503, TEXT, b"too many readers\n"))
            return
        try:
            self._head(request, 200, "text/event-stream", {})
            for event in page.events():
                request.wfile.write(event)
        except OSError:  # the browser has gone, or does not read
            pass
        finally:
            page.end_reading()

    def _send(self, request: BaseHTTPRequestHandler, answer: Answer) -> None:
        length = {"Content-Length": str(len(answer.body))}
        try:
            self._head(request, answer.code, answer.kind, {**answer.headers, **length})
            request.wfile.write(answer.body)
        except OSError:  # nobody waits for the answer any more
            pass

    def _head(
        self, request: BaseHTTPRequestHandler, code: int, kind: str, more: Mapping[str, str]
    ) -> None:
        request.send_response(code)
        for name, value in {"Content-Type": kind, **HEADERS, **more}.items():
            request.send_header(name, value)
        request.end_headers()

    def _may_read(self, request: BaseHTTPRequestHandler) -> bool:
        if self._token is None:
            return True
        scheme, _, given = (request.headers.get("Authorization") or "").partition(" ")
        if scheme.lower() == "basic":
            try:
                given = base64.b64decode(given).decode().partition(":")[2]
            except ValueError:
                return False
        elif scheme.lower() != "bearer":
            return False
        return _equal(given.strip(), self._token)


def _equal(given: str, wanted: str) -> bool:
    """Compare two texts in a time that reveals neither where they differ nor their lengths."""
    digests = (hashlib.sha256(text.encode()).digest() for text in (given, wanted))
    return hmac.compare_digest(*digests)


def _path(target: str) -> str:
    """The path of what a request asks for; an empty one if it is not an address at all."""
    try:
        return urlsplit(target).path
    except ValueError:
        return ""

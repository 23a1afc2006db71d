"""An HTTP server for the page of a model, and for all other paths that its owner serves.

With a token, all paths except the open ones require it: as `Authorization: Bearer`, or as a cookie
that a browser gets from the form at `/`. The cookie is made from the token, but the token cannot be
derived from the cookie. Comparisons take the same time whatever is compared.

A request must be for one of our own names: for localhost, an IP address, or a host that was
declared. Otherwise a page of another site could read from this one: its owner lets the site's name
point to our address (DNS rebinding), and browsers then take both for the same site. An address
needs no such rule, because nobody can make it point elsewhere.

Browsers are told to load nothing from other sites, to run only the scripts of this server, and to
show the page in no frame.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import threading
from collections.abc import Callable, Collection, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, parse_qs, urlsplit

from ..errors import ConfigurationError
from .page import FILES, Page

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
#: Longest form that is read.
MOST_FORM_BYTES: Final = 4096
TEXT, HTML = "text/plain; charset=utf-8", "text/html; charset=utf-8"


class Answer(NamedTuple):
    """An answer to a request."""

    code: int
    kind: str
    body: bytes
    headers: Mapping[str, str] = {}


#: Answers a path, or leaves it to the page.
Routes = Callable[[str], Answer | None]


def _no_routes(path: str) -> Answer | None:
    return None


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
        routes: Routes = _no_routes,
        token: str | None = None,
        open_paths: Collection[str] = (),
        hosts: Collection[str] = (),
    ) -> None:
        server = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 5

            def do_GET(self) -> None:
                server._handle(self, server._get)

            def do_POST(self) -> None:
                server._handle(self, server._post)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._page, self._routes, self._token = page, routes, token
        self._hosts = frozenset({"localhost", *(host.lower() for host in hosts)})
        # The files of the page hold nothing of the model; the form needs some of them.
        self._open = frozenset(open_paths) | (FILES.keys() - {"/"})
        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except OSError as error:
            raise ConfigurationError(
                f"http_host and http_port: cannot listen at {host}:{port} ({error.strerror}). "
                "Is another instance running on this machine? http_port=0 takes any free port."
            ) from None
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        # All ports of a host share its cookies, so each port has a cookie name of its own.
        self._cookie = f"stream-dppca-{self.port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="http", daemon=True, args=(0.2,)
        )
        self._thread.start()

    def close(self) -> None:
        if self._page is not None:
            self._page.close()
        self._server.shutdown()
        self._server.server_close()

    # Requests

    def _handle(
        self, request: BaseHTTPRequestHandler, handle: Callable[[BaseHTTPRequestHandler], None]
    ) -> None:
        hosts = request.headers.get_all("Host") or ["localhost"]  # HTTP/1.0 has none
        if len(hosts) == 1 and self._is_ours(hosts[0]):
            handle(request)
        else:
            body = b"this name of the host is not declared: see the setting http_hosts\n"
            self._send(request, Answer(421, TEXT, body))

    def _is_ours(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host.strip()}").hostname or "").removesuffix(".")
            return name in self._hosts or bool(ipaddress.ip_address(name))
        except ValueError:
            return False

    def _get(self, request: BaseHTTPRequestHandler) -> None:
        url = _split(request.path)
        if not (url.path in self._open or self._may_read(request)):
            self._send(request, self._refusal(url.path))
        elif url.path == "/events" and self._page is not None:
            self._stream(request, self._page)
        else:
            self._send(request, self._answer(url.path))

    def _answer(self, path: str) -> Answer:
        found = self._page.file(path) if self._page is not None else None
        if found is not None:
            return Answer(200, *found)
        paths = b"/livez /readyz /metrics /component /facts\n"
        return self._routes(path) or Answer(404, TEXT, paths)

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

    # The token

    def _may_read(self, request: BaseHTTPRequestHandler) -> bool:
        if self._token is None:
            return True
        scheme, _, given = (request.headers.get("Authorization") or "").partition(" ")
        if scheme.lower() == "bearer" and _equal(given.strip(), self._token):
            return True
        # Not with `http.cookies`, whose time grows with the square of the length in Python 3.11.
        pairs = (c.strip().partition("=") for c in (request.headers.get("Cookie") or "").split(";"))
        given = next((value for name, _, value in pairs if name == self._cookie), "")
        return _equal(given, _session(self._token))

    def _refusal(self, path: str, wrong: bool = False) -> Answer:
        """A refusal: a form for people, a line for programs."""
        if path != "/" or self._page is None:
            return Answer(401, TEXT, b"a token is needed\n", {"WWW-Authenticate": "Bearer"})
        return Answer(401, HTML, _FORM.format(note=_WRONG if wrong else "").encode())

    def _post(self, request: BaseHTTPRequestHandler) -> None:
        """Take the token from the form, and give a cookie for it."""
        token = self._token
        if _split(request.path).path != "/login" or token is None or self._page is None:
            self._send(request, Answer(404, TEXT, b"nothing is posted here\n"))
            return
        try:
            length = int(request.headers.get("Content-Length") or 0)
            if not 0 <= length <= MOST_FORM_BYTES:
                raise ValueError
            form = parse_qs(request.rfile.read(length).decode())
        except (OSError, ValueError):
            self._send(request, Answer(400, TEXT, b"not a form with a token\n"))
            return
        if not _equal(form.get("token", [""])[0], token):
            self._send(request, self._refusal("/", wrong=True))
            return
        cookie = f"{self._cookie}={_session(token)}; Path=/; HttpOnly; SameSite=Strict"
        self._send(request, Answer(303, TEXT, b"", {"Location": "/", "Set-Cookie": cookie}))


def _equal(given: str, wanted: str) -> bool:
    """Compare two texts in a time that reveals neither where they differ nor their lengths."""
    digests = (hashlib.sha256(text.encode()).digest() for text in (given, wanted))
    return hmac.compare_digest(*digests)


def _session(token: str) -> str:
    return hmac.new(token.encode(), b"the page of stream-dppca", hashlib.sha256).hexdigest()


_WRONG: Final = '<p class="bad">This is not the token.</p>'
_FORM: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>stream-dppca</title>
<link rel="icon" href="/icon.svg">
<link rel="stylesheet" href="/page.css">
<main class="login">
<h1>stream-dppca</h1>
<form method="post" action="/login">
<p><label>Token (the setting <code>http_token</code> of the service)<br>
<input name="token" type="password" autocomplete="current-password" required autofocus></label></p>
{note}
<p><button>Show the model</button></p>
</form>
</main>
</html>
"""


def _split(target: str) -> SplitResult:
    """The parts of what a request asks for; an empty path if it is not an address at all."""
    try:
        return urlsplit(target)
    except ValueError:
        return urlsplit("")

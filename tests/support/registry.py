"""A Schema Registry in this process: the part of the HTTP API that clients and serializers use."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TYPE = "application/vnd.schemaregistry.v1+json"


class Registry:
    """Schemas by id and by subject; `status` is what it answers instead, if it is set."""

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.asked: list[str] = []
        self.status: int | None = None
        self.broken: bytes | None = None  #: the body of an invalid answer
        self.url = ""

    def register(self, subject: str, schema: Any, kind: str = "AVRO", **more: Any) -> int:
        """Register a schema; returns its id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        entry = {"schema": text, "schemaType": kind, **more}
        known = [number for number, other in self.schemas.items() if other == entry]
        number = known[0] if known else 100_000 + len(self.schemas)
        self.schemas[number] = entry
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def answer(self, method: str, url: str, body: Any) -> tuple[int, Any]:
        parts = urlsplit(url)
        self.asked.append(parts.path)
        if self.status is not None:
            return self.status, {"error_code": self.status, "message": "away"}
        if found := re.fullmatch(r"/schemas/ids/(-?\d+)", parts.path):
            schema = self.schemas.get(int(found[1]))
            if schema is None:
                return 404, {"error_code": 40403, "message": f"Schema {found[1]} not found"}
            if schema["schemaType"] == "PROTOBUF":  # otherwise it would be a .proto file
                assert parse_qs(parts.query)["format"] == ["serialized"]
            return 200, {k: v for k, v in schema.items() if (k, v) != ("schemaType", "AVRO")}
        if found := re.fullmatch(r"/subjects/([^/]+)/versions/(\d+)", parts.path):
            subject, version = unquote(found[1]), int(found[2])
            if subject not in self.subjects:
                return 404, {"error_code": 40401, "message": "Subject not found"}
            if not 0 < version <= len(self.subjects[subject]):
                return 404, {"error_code": 40402, "message": "Version not found"}
            number = self.subjects[subject][version - 1]
            more = {"subject": subject, "id": number, "version": version}
            return 200, {**self.schemas[number], **more}
        if method == "POST" and (
            found := re.fullmatch(r"/subjects/([^/]+)(?:/versions)?", parts.path)
        ):
            subject = unquote(found[1])
            entry = {key: value for key, value in body.items() if value is not None}
            number = self.register(
                subject, entry.pop("schema"), entry.pop("schemaType", "AVRO"), **entry
            )
            version = self.subjects[subject].index(number) + 1
            return 200, {
                **self.schemas[number],
                "subject": subject,
                "id": number,
                "version": version,
            }
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}


@contextmanager
def registry() -> Iterator[Registry]:
    """A registry that listens."""
    served = Registry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            status, answer = served.answer(self.command, self.path, body)
            content = json.dumps(answer).encode() if served.broken is None else served.broken
            self.send_response(status)
            self.send_header("Content-Type", TYPE)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = _serve

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()

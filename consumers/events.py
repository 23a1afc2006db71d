"""JSON logs on stdout: one object per line, with the name of an event.

An event carries names, numbers of partitions, offsets and batches, never anything of a record. An
unexpected error is logged with its type and place only: its text may quote data. Warnings and
errors of the Kafka client are logged too; its debug messages are not, because they hold values.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
import traceback
from typing import Any, Final, Literal, TextIO

from stream_dppca import DPPCAError

from .errors import ServiceError

__all__ = ["ConnectionFailures", "describe_error", "log_event", "set_up_logs"]

Level = Literal["info", "warning", "error"]

#: Events whose text comes from the Kafka client.
_ABOUT_THE_CLUSTER: Final = ("task_dropped", "group_error", "waiting_for_brokers")

_logger = logging.getLogger("stream_dppca.service")
_lock = threading.Lock()


def log_event(event: str, *, level: Level = "info", **fields: Any) -> None:
    """Log that something happened."""
    _logger.log(getattr(logging, level.upper()), event, extra={"fields": fields})


def describe_error(error: BaseException) -> dict[str, Any]:
    """Return the fields of an event that describe an error."""
    fields: dict[str, Any] = {"error": type(error).__name__}
    if isinstance(error, ServiceError | DPPCAError):
        fields["message"] = str(error)
    frames = traceback.extract_tb(error.__traceback__)
    fields["at"] = [f"{f.filename.rsplit('/', 1)[-1]}:{f.lineno} {f.name}" for f in frames[-6:]]
    return fields


def _masked(text: str) -> str:
    return re.sub(r"\d+", "#", text)


class _JsonLines(logging.Handler):
    """Writes events as JSON, one per line."""

    def __init__(self, stream: TextIO, context: dict[str, Any], mask_numbers: bool) -> None:
        super().__init__()
        self._stream, self._context, self._mask_numbers = stream, context, mask_numbers

    def emit(self, record: logging.LogRecord) -> None:
        now = time.gmtime(record.created)
        entry: dict[str, Any] = {
            # To the second: how long a batch took may depend on its records.
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", now),
            "level": record.levelname.lower(),
            "event": record.msg if record.name == _logger.name else "client",
            **self._context,
        }
        if record.name == _logger.name:
            entry.update(getattr(record, "fields", {}))
            if self._mask_numbers and entry["event"] in _ABOUT_THE_CLUSTER:
                entry["message"] = _masked(str(entry.get("message", "")))
        else:
            text = record.getMessage()[:500]
            entry.update(logger=record.name, message=_masked(text) if self._mask_numbers else text)
        with _lock:
            try:
                self._stream.write(json.dumps(entry, default=str) + "\n")
                self._stream.flush()
            except (OSError, ValueError):  # nobody reads any more
                pass


class ConnectionFailures(logging.Handler):
    """Collects what the Kafka client logs, and keeps only why it got no connection."""

    _FAILED: Final = re.compile(
        r"^(?:Connection|Bootstrap (?:connection|attempt) to \S+) failed: "
        r"(?:\[Error \d+\] )?(?:\w+Error: )*(.*?)(?: \(backoff [\d.]+ secs\))?$"
    )
    #: All that the client sees of a broker that hangs up before its reason has been read.
    _VAGUE: Final = "socket disconnected"

    def __init__(self) -> None:
        super().__init__()
        self.reason = ""  #: of the last failure; empty if there was none
        logging.getLogger("kafka").handlers = [self]

    def emit(self, record: logging.LogRecord) -> None:
        found = self._FAILED.search(record.getMessage()[:500])
        if found is not None and (found[1] != self._VAGUE or not self.reason):
            self.reason = found[1]


def set_up_logs(
    stream: TextIO | None = None, *, mask_numbers: bool = False, **context: Any
) -> None:
    """Send every event to `stream` (default: stdout), each with the fields of `context`.

    With `mask_numbers`, numbers in what the Kafka client says are masked: some are offsets.
    """
    handler = _JsonLines(stream or sys.stdout, context, mask_numbers)
    _logger.handlers = [handler]
    _logger.setLevel(logging.INFO)
    _logger.propagate = False
    kafka = logging.getLogger("kafka")
    kafka.handlers = [handler]
    kafka.setLevel(logging.WARNING)
    kafka.propagate = False

"""Logs on stdout: one event per line, as JSON, or as text on a terminal.

An event carries names, numbers of partitions, offsets and batches, never anything of a record. An
unexpected error is logged with its type and place only: its text may quote data. Warnings and
errors of the Kafka client are logged too; its debug messages are not, because they hold values.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import threading
import time
import traceback
from functools import partial
from typing import Any, Final, Literal, TextIO

from stream_dppca import DPPCAError

from .errors import ServiceError

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


class _Lines(logging.Handler):
    """Writes events, one per line: as JSON for programs, or as text for people."""

    def __init__(
        self, stream: TextIO, context: dict[str, Any], *, text: bool, mask_numbers: bool
    ) -> None:
        super().__init__()
        self._stream, self._context, self._mask_numbers = stream, context, mask_numbers
        self._format = _as_text if text else partial(json.dumps, default=str)
        self._noise = _ClientNoise()

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == _logger.name:
            event, fields = str(record.msg), getattr(record, "fields", {})
        else:
            found = self._noise.summarised(record)
            if found is None:
                return
            event, fields = found
        entry: dict[str, Any] = {
            # To the second, because the duration of a batch may depend on its records.
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            # The service waits for a broker that is away, so nothing has failed.
            "level": "warning" if event == "waiting_for_brokers" else record.levelname.lower(),
            "event": event,
            **self._context,
            **fields,
        }
        if self._mask_numbers and (event == "client" or event in _ABOUT_THE_CLUSTER):
            for name in ("message", "reason"):
                if name in entry:
                    entry[name] = _NUMBER.sub("#", str(entry[name]))
        with _lock:
            try:
                self._stream.write(self._format(entry) + "\n")
                self._stream.flush()
            except (OSError, ValueError):  # nobody reads the log any more
                pass


def _as_text(entry: dict[str, Any]) -> str:
    """One line for people: the time of day, the event, and its fields.

    Examples
    --------
    >>> _as_text({"time": "2030-01-01T12:00:00Z", "level": "warning", "event": "task_dropped",
    ...           "model": "m", "pid": 7, "batch": 3, "error": "Fenced", "at": ["x"]})
    '12:00:00Z WARNING task dropped: batch=3 error=Fenced'
    """
    skipped = ("time", "level", "event", "model", "pid", "at")
    shown = " ".join(
        f"{name}={value}"
        for name, value in entry.items()
        if name not in skipped and value is not None and value is not False
    )
    level = "" if entry["level"] == "info" else f"{entry['level'].upper()} "
    event = str(entry["event"]).replace("_", " ")
    return f"{entry['time'][11:]} {level}{event}" + (f": {shown}" if shown else "")


class _ClientNoise:
    """Passes on what the Kafka client logs, but repeated messages only now and then, with a count.

    While no broker answers, the client logs several lines per second. The first failure is logged
    at once, as `waiting_for_brokers`; those that follow are counted.
    """

    SECONDS: Final = 30.0
    #: Messages that follow from a failed connection and add nothing to it.
    _ALSO: Final = re.compile("Connection lost|not ready; waiting|Unable to bootstrap")

    def __init__(self) -> None:
        self._said: dict[str, tuple[float, int]] = {}  # time when logged last, repetitions since

    #: Times to the millisecond that the client was busy, which may depend on what it has read.
    _TIMING: Final = re.compile(r"ran for [\d.]+s")

    def summarised(self, record: logging.LogRecord) -> tuple[str, dict[str, Any]] | None:
        message = record.getMessage()[:500]
        if self._TIMING.search(message):
            return None
        failed = ConnectionFailures.FAILED.search(message)
        kind = "connection" if failed else _NUMBER.sub("#", message)
        if not failed and self._ALSO.search(message) and self._recent("connection", record):
            kind = "connection"
        at, since = self._said.get(kind, (-math.inf, 0))
        if self._recent(kind, record):
            self._said[kind] = (at, since + 1)
            return None
        if len(self._said) > 1000:  # texts that never repeat
            self._said.clear()
        self._said[kind] = (record.created, 0)
        fields = {"repeated": since} if since else {}
        if failed:
            return "waiting_for_brokers", {"reason": failed[1], **fields}
        return "client", {"logger": record.name, "message": message, **fields}

    def _recent(self, kind: str, record: logging.LogRecord) -> bool:
        return kind in self._said and record.created - self._said[kind][0] < self.SECONDS


#: The parts in which two messages of the client with the same meaning differ: numbers, ids.
_NUMBER: Final = re.compile(r"0x[0-9a-f]+|\d+")


class ConnectionFailures(logging.Handler):
    """Reads the log of the Kafka client, and keeps only the reason why a connection failed."""

    FAILED: Final = re.compile(
        r"^(?:Connection|Bootstrap (?:connection|attempt) to \S+) failed: "
        r"(?:\[Error \d+\] )?(?:\w+Error: )*(.*?)(?: \(backoff [\d.]+ secs\))?$"
    )
    #: The reason that the client gives if a broker hangs up before its own reason has been read.
    _VAGUE: Final = "socket disconnected"

    def __init__(self) -> None:
        super().__init__()
        self.reason = ""  #: of the last failure; empty if there was none
        logging.getLogger("kafka").handlers = [self]

    def emit(self, record: logging.LogRecord) -> None:
        found = self.FAILED.search(record.getMessage()[:500])
        if found is not None and (found[1] != self._VAGUE or not self.reason):
            self.reason = found[1]


def set_up_logs(
    stream: TextIO | None = None,
    format: Literal["auto", "json", "text"] = "json",
    *,
    mask_numbers: bool = False,
    **context: Any,
) -> None:
    """Send every event to `stream` (default: stdout), each with the fields of `context`.

    The format auto is text for people on a terminal, and JSON elsewhere. With `mask_numbers`,
    numbers in messages of the Kafka client are masked: some are offsets.
    """
    stream = stream or sys.stdout
    text = format == "text" or (format == "auto" and stream.isatty())
    handler = _Lines(stream, context, text=text, mask_numbers=mask_numbers)
    for logger, level in ((_logger, logging.INFO), (logging.getLogger("kafka"), logging.WARNING)):
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)

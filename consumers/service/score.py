"""`stream-dppca score`: reads a topic, and writes the scores of each record to another one.

    releases ─────────────> current model ┐
    records ─> decode ─> rows ─────────────┴─> scores ─> scores topic ─> commit the offsets

The group commits offsets only after the brokers have the scores. A process that dies in between
writes some of them again: a score names the partition, offset and row of its record, so readers can
recognise these. Several processes share the partitions, as in every consumer group.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import msgspec

from ..errors import ClusterError, ConfigurationError
from ..events import describe_error, log_event
from ..formats import POINT_FORMATS
from ..kafka.subscription import Received
from ..messages.codecs import Codec
from ..messages.recipe import MessageRecipe
from ..model.releases import PublishedRelease
from ..model.scores import NOT_PRIVATE, CurrentModel, Score, Scorer
from ..protocols import Cluster, Message, Reader, SchemaSource, TopicInfo
from ..settings import ClusterSettings, TopicSettings

POLL_SECONDS: Final = 1.0
BACKOFF_SECONDS: Final = 1.0


class Source(Protocol):
    """The source of records."""

    def read(self, timeout_s: float) -> list[Received]: ...
    def positions(self) -> dict[int, int]: ...
    def commit(self) -> None: ...
    def close(self) -> None: ...


class Target(Protocol):
    """The destination of scores."""

    def send(self, messages: Sequence[Message]) -> None: ...
    def close(self) -> None: ...


def run_scoring(
    cluster: Cluster,
    current: CurrentModel,
    *,
    output_topic: str,
    input_topic: str,
    open_source: Callable[[], Source],
    open_target: Callable[[], Target],
    make_codec: Callable[[PublishedRelease], Codec],
    stop: threading.Event,
    once: bool = False,
) -> int:
    """Score records until `stop` is set; return the number of scores written.

    Parameters
    ----------
    current
        The model to follow.
    output_topic
        Topic of its releases.
    input_topic
        Topic of the records.
    open_source, open_target
        Open the source of the records and the destination of the scores.
    make_codec
        Makes the codec for the features of a release, or refuses it.
    once
        Return when all records that are there at the start have been scored.
    """
    log_event("not_private", level="warning", reason=NOT_PRIVATE)
    written = 0
    while not stop.is_set():
        worker = None
        try:
            worker = _Worker(cluster, current, output_topic, make_codec)
            worker.open(open_source, open_target, stop)
            ends = cluster_ends(cluster, input_topic) if once else None
            while not stop.is_set():
                written += worker.step()
                if ends is not None and worker.past(ends):
                    return written
        except ClusterError as error:
            log_event("scoring_interrupted", level="warning", **describe_error(error))
            stop.wait(BACKOFF_SECONDS)
        finally:
            if worker is not None:
                worker.close()
    return written


def codec_of(
    settings: ClusterSettings, release: PublishedRelease, registry: SchemaSource | None
) -> Codec:
    """Make the codec for the records of a release, by the rule of its model."""
    if settings.format in POINT_FORMATS and release.privacy.unit == "subject":
        raise ConfigurationError(
            f"model {release.model!r} has no scores of single messages: its row is everything that "
            "a subject sends in a round"
        )
    return MessageRecipe.of(settings, release.features).codec(registry)


def cluster_ends(cluster: Cluster, topic: str) -> dict[int, int]:
    """The current ends of the partitions of a topic."""
    offsets = cluster.offsets(topic)
    try:
        return offsets.ends(sorted(offsets.partitions()))
    finally:
        offsets.close()


def _place(score: Score) -> bytes:
    """The key of a score whose record has no key."""
    return b"%d/%d" % (score.partition, score.offset)


def ensure_scores_topic(cluster: Cluster, settings: TopicSettings, topic: str) -> None:
    """Create the topic for scores if it does not exist, with the partitions of the input."""
    if topic in (settings.input_topic, settings.output_topic, settings.state_topic):
        raise ConfigurationError(f"--scores-topic must be a topic of its own. Found {topic!r}.")
    records = cluster.topic(settings.input_topic)
    if records is None:
        raise ConfigurationError(f"input_topic {settings.input_topic!r} does not exist")
    if cluster.topic(settings.output_topic) is None:
        raise ConfigurationError(
            f"output_topic {settings.output_topic!r} does not exist: there is no model "
            f"{settings.model!r} yet"
        )
    if cluster.topic(topic) is None:
        if not settings.create_topics:
            raise ConfigurationError(f"topic {topic!r} does not exist: create it")
        cluster.create_topic(topic, TopicInfo(records.partitions), settings.replication_factor)
        log_event("topic_created", topic=topic, partitions=records.partitions)


class _Worker:
    """Scores records over one set of connections. After any error, close it and make another."""

    def __init__(
        self,
        cluster: Cluster,
        current: CurrentModel,
        output_topic: str,
        make_codec: Callable[[PublishedRelease], Codec],
    ) -> None:
        self._current, self._make_codec = current, make_codec
        self._open: list[Any] = []
        self._releases: Reader = cluster.reader(output_topic)
        self._open.append(self._releases)
        self._ends: dict[int, int] = {}
        self._scorer: Scorer | None = None
        self._codec: Codec | None = None

    def open(
        self,
        open_source: Callable[[], Source],
        open_target: Callable[[], Target],
        stop: threading.Event,
    ) -> None:
        """Wait for a model that has learned something; only then begin to read records."""
        bounds = self._releases.bounds(sorted(self._releases.partitions()))
        self._releases.assign({p: first for p, (first, _) in bounds.items()})
        self._ends = {p: end for p, (_, end) in bounds.items()}
        waiting = False
        while not stop.is_set():
            self._follow(POLL_SECONDS)
            at = self._releases.positions()
            if all(at.get(p, 0) >= end for p, end in self._ends.items()):
                if self._scorer is not None:
                    break
                if not waiting:
                    waiting = True
                    log_event("waiting_for_model")
        self._target = open_target()
        self._open.append(self._target)
        self._source = open_source()
        self._open.append(self._source)

    def _follow(self, timeout_s: float) -> None:
        """Take the newest release."""
        for chunk in self._releases.read(timeout_s):
            self._current.see(chunk.values)
        release = self._current.release
        if release is not None and (self._scorer is None or self._scorer.release != release):
            if self._codec is None or self._scorer is None or (
                self._scorer.release.features != release.features
            ):  # fmt: skip
                self._codec = self._make_codec(release)
            self._scorer = Scorer(release)
            log_event("model_current", batch=release.batch)

    def step(self) -> int:
        """Score the next records; return their number."""
        self._follow(0.0)
        received = self._source.read(POLL_SECONDS)
        if not received or self._scorer is None or self._codec is None:
            return 0
        per_message = self._codec.rows_per_message
        rows = self._codec.decode([message.value for message in received])
        places = [(message.partition, message.offset) for message in received]
        encode = msgspec.json.Encoder().encode
        messages = [
            Message(received[i // per_message].key or _place(score), encode(score))
            for i, score in enumerate(self._scorer.scores(rows, places, per_message))
        ]
        self._target.send(messages)
        self._source.commit()
        return len(messages)

    def past(self, ends: dict[int, int]) -> bool:
        """Tell whether all assigned partitions have been read up to these offsets."""
        at = self._source.positions()
        return bool(at) and all(offset >= ends.get(p, 0) for p, offset in at.items())

    def close(self) -> None:
        while self._open:
            self._open.pop().close()

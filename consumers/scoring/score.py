"""`stream-dppca score`: reads a topic, and writes the scores of each record to another one.

    releases ────────> current model ┐
    records ─> rows ─────────────────┴─> scores ─> scores topic ─> commit the offsets

The release says what a row is, as it says for learning: a message, a part of one, or all points of
a subject in a round (`RoundRows`).

**At least once.** Offsets are committed only after the brokers have the scores. A process that dies
in between writes some of them again: a score names the partition, offset and row of its record (or
the subject and the round), by which readers can recognise these. Several processes share the
partitions, as in every consumer group; rounds are read by one process.
"""

from __future__ import annotations

import datetime
import gc
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import UNSET
from numpy.typing import NDArray

from stream_dppca import SubjectStatement

from .. import crashpoints
from ..errors import ClusterError, ConfigurationError
from ..events import describe_error, log_event
from ..formats import POINT_FORMATS
from ..kafka.registry import open_registry
from ..messages.codecs import Codec
from ..messages.gathered import Gathering
from ..messages.recipe import MessageRecipe
from ..model.releases import PublishedRelease
from ..monitoring.metrics import Metrics
from ..planning.round_planner import RoundPlanner
from ..planning.timeline import BrokerTime, cuts
from ..protocols import Chunk, Cluster, TopicInfo, TopicOffsets
from ..reading.round_reader import RoundReader
from ..settings import RoundRule, ScoreSettings, TopicSettings
from ..settings.topics import Start
from .scorer import NOT_PRIVATE, CurrentModel, RowsToScore, Scorer
from .status import ScoreStatus

if TYPE_CHECKING:
    from ..kafka.confluent import GroupNote, MessageProducer, Subscription

POLL_SECONDS: Final = 0.5
COMMIT_SECONDS: Final = 1.0
BACKOFF_SECONDS: Final = 1.0


class RowSource(Protocol):
    """The rows of the input."""

    def read(self, timeout_s: float) -> list[RowsToScore]: ...
    def commit(self) -> None: ...
    def at_end(self) -> bool: ...
    def close(self) -> None: ...


class MessageRows:
    """Rows that are in messages."""

    def __init__(self, group: Subscription, codec: Codec, ends: dict[int, int]) -> None:
        self._group, self._codec, self._ends = group, codec, ends
        self.commit, self.close = group.commit, group.close

    def read(self, timeout_s: float) -> list[RowsToScore]:
        return [self._rows(chunk) for chunk in self._group.read(timeout_s)]

    def _rows(self, chunk: Chunk) -> RowsToScore:
        of, partition = range(self._codec.rows_per_message), chunk.partition
        return RowsToScore(
            self._codec.decode(chunk.values),
            [(partition, offset, row, UNSET) for offset in chunk.offsets for row in of],
            chunk.keys if len(of) == 1 else [key for key in chunk.keys for _ in of],
        )

    def at_end(self) -> bool:
        """Tell whether all assigned partitions have been read up to where they ended at first."""
        at = self._group.positions()
        return bool(at) and all(offset >= self._ends.get(p, 0) for p, offset in at.items())


class RoundRows:
    """Rows that are made of all points of a subject in a round, once the round is over."""

    def __init__(
        self, cluster: Cluster, settings: ScoreSettings, release: PublishedRelease, notes: GroupNote
    ) -> None:
        self._rule, gathering = rounds_of(settings, release)
        self._notes, self._found = notes, list[RowsToScore]()
        topic, metrics, now = settings.input_topic, Metrics(), int(time.time() * 1000)
        offsets, done = cluster.offsets(topic), notes.load()
        first = _first_round(settings.start, self._rule, offsets, now) if done is None else done + 1
        self._planner = RoundPlanner(
            offsets,
            topic,
            self._rule,
            metrics,
            interval_s=settings.plan_interval_ms / 1000,
            refresh_s=settings.partition_refresh_s,
            times=BrokerTime(cluster, topic, settings.clock_slack),
        )
        self._reader = RoundReader(
            cluster.reader(topic, stamped=True),
            topic,
            gathering,
            self._rule,
            metrics,
            stall_s=settings.stall_timeout_s,
            take=self._take,
        )
        self._next = self._kept = first
        self._last = self._rule.round_at(now - settings.clock_slack)
        self._planner.begin({}, first, 0)
        log_event("scoring_from", round=self._start(first))

    def read(self, timeout_s: float) -> list[RowsToScore]:
        planned = self._planner.next_round()
        if planned is None:
            self._planner.wait(timeout_s)
            return []
        self._reader.start(planned)
        while not self._reader.complete:
            self._reader.read(timeout_s)
        self._found = []
        self._reader.finish()
        self._next += 1
        return self._found

    def _take(self, rows: NDArray[Any], subjects: Sequence[object]) -> None:
        names = [str(s, "utf-8", "replace") if isinstance(s, bytes) else str(s) for s in subjects]
        seen: dict[str, int] = {}
        origins = []
        for name in names:
            seen[name] = row = seen.get(name, -1) + 1
            origins.append((UNSET, UNSET, row, name))
        keys = [name.encode() for name in names]
        self._found.append(RowsToScore(rows, origins, keys, self._start(self._next)))

    def _start(self, round: int) -> str:
        seconds = self._rule.start_ms(round) / 1000
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat()

    def commit(self) -> None:
        if self._next != self._kept:
            self._notes.keep(self._next - 1)
            self._kept = self._next

    def at_end(self) -> bool:
        return self._next >= self._last

    def close(self) -> None:
        self._reader.close()
        self._planner.close()
        self._notes.close()


def _first_round(start: Start, rule: RoundRule, offsets: TopicOffsets, now_ms: int) -> int:
    """The round that a new group begins with: the oldest one with records, unless told otherwise.

    That would tell when somebody sent something, but so do the scores.
    """
    if isinstance(start, datetime.datetime):
        return rule.round_at(round(start.timestamp() * 1000))
    low, high = 0, rule.round_at(now_ms)
    if start == "latest":
        return high
    partitions = sorted(offsets.partitions())
    whole = cuts(offsets, partitions, 0)
    while low < high:  # nothing is older than the beginning of the round `low`
        middle = (low + high + 1) // 2
        before = cuts(offsets, partitions, rule.start_ms(middle)) == whole
        low, high = (middle, high) if before else (low, middle - 1)
    return low


def rounds_of(settings: ScoreSettings, release: PublishedRelease) -> tuple[RoundRule, Gathering]:
    """The rule by which the points of subjects became the rows of a release."""
    said = release.privacy
    if release.round is None or not isinstance(said, SubjectStatement):
        raise ConfigurationError(f"model {release.model!r} has no rounds")
    start, end = map(datetime.datetime.fromisoformat, (release.round.start, release.round.end))
    length_ms = (end - start) // datetime.timedelta(milliseconds=1)
    recipe = MessageRecipe.of(settings, release.features)
    codec = replace(recipe, subject=said.subject, records=said.records).subject_codec(None)
    if not isinstance(codec, Gathering):
        raise ConfigurationError(f"`format` {settings.format} has no points")
    return RoundRule(said.subject, length_ms, said.period), codec


def open_rows(
    cluster: Cluster,
    settings: ScoreSettings,
    release: PublishedRelease,
    open_group: Callable[[], Subscription],
    open_notes: Callable[[], GroupNote],
) -> RowSource:
    """Open the rows of the input, by the rule of the model of this release."""
    if settings.format in POINT_FORMATS and release.privacy.unit == "subject":
        return RoundRows(cluster, settings, release, open_notes())
    if isinstance(settings.start, datetime.datetime):
        raise ConfigurationError("`start` must be earliest or latest: the model has no rounds")
    recipe = MessageRecipe.of(settings, release.features)
    codec = recipe.codec(open_registry(recipe))
    offsets = cluster.offsets(settings.input_topic)
    try:
        ends = offsets.ends(sorted(offsets.partitions()))
    finally:
        offsets.close()
    return MessageRows(open_group(), codec, ends)


@dataclass(frozen=True)
class Scoring:
    """The parts of a process that scores."""

    cluster: Cluster
    current: CurrentModel  #: the model to follow
    output_topic: str  #: topic of its releases
    open_source: Callable[[PublishedRelease], RowSource]  #: opens the rows for a release
    open_target: Callable[[], MessageProducer]  #: opens the destination of the scores
    status: ScoreStatus
    rate: float = 0.01  #: the share of the records to flag by each score
    top: int = 3  #: the number of contributions to name

    def run(self, stop: threading.Event, *, once: bool = False) -> int:
        """Score records until `stop` is set; return the number of scores written.

        With `once`, return when all records that are there at the start have been scored.
        """
        log_event("not_private", level="warning", reason=NOT_PRIVATE)
        written = 0
        while not stop.is_set():
            try:
                with ExitStack() as opened:
                    worker = _Worker(self, opened)
                    worker.open(stop)
                    while not stop.is_set():
                        written += worker.turn()
                        if once and worker.source.at_end():
                            break
                    worker.settle()
                    if once:
                        return written
            except ClusterError as error:
                log_event("scoring_interrupted", level="warning", **describe_error(error))
                stop.wait(BACKOFF_SECONDS)
        return written


def ensure_scores_topic(cluster: Cluster, settings: TopicSettings, topic: str, once: bool) -> None:
    """Create the topic for scores if it does not exist, with the partitions of the input.

    A model that does not exist yet is waited for, unless the records are scored `once`.
    """
    if topic in (settings.input_topic, settings.output_topic, settings.state_topic):
        raise ConfigurationError(f"--scores-topic must be a topic of its own. Found {topic!r}.")
    records = cluster.topic(settings.input_topic)
    if records is None:
        raise ConfigurationError(f"input_topic {settings.input_topic!r} does not exist")
    if once and cluster.topic(settings.output_topic) is None:
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
    """Scores records over one set of connections. After any error, make another."""

    def __init__(self, scoring: Scoring, opened: ExitStack) -> None:
        self._of, self._status, self._opened = scoring, scoring.status, opened
        self._releases = opened.enter_context(closing(scoring.cluster.reader(scoring.output_topic)))
        self._scorer: Scorer | None = None
        self._settled_at = time.monotonic()

    def open(self, stop: threading.Event) -> None:
        """Wait for a model that has learned something; only then begin to read records."""
        bounds = self._releases.bounds(sorted(self._releases.partitions()))
        self._releases.assign({p: first for p, (first, _) in bounds.items()})
        waiting = False
        while not stop.is_set():
            self._follow(POLL_SECONDS)
            at = self._releases.positions()
            if all(at.get(p, 0) >= end for p, (_, end) in bounds.items()):
                if self._scorer is not None:
                    break
                if not waiting:
                    waiting = True
                    log_event("waiting_for_model")
        if self._scorer is None:
            return  # stopped
        # The collector would look through all modules again and again: two thirds of the time.
        gc.freeze()
        enter = self._opened.enter_context
        self._target = enter(closing(self._of.open_target()))
        self.source = enter(closing(self._of.open_source(self._scorer.release)))

    def _follow(self, timeout_s: float) -> None:
        """Take the newest release."""
        self._status.turned()
        for chunk in self._releases.read(timeout_s):
            self._of.current.see(chunk.values)
        release, scorer = self._of.current.release, self._scorer
        if release is None or (scorer is not None and scorer.release is release):
            return
        if scorer is not None and scorer.release.features != release.features:
            raise ClusterError("the features of the model have changed")
        self._scorer = new = Scorer(release, self._of.rate, self._of.top)
        if new.unlimited and (scorer is None or new.unlimited != scorer.unlimited):
            has = (
                f"{name} has {', '.join(f'{limit.rate:g}' for limit in limits)}"
                for name, limits in release.limits.items()
            )
            reason = f"no limit for {self._of.rate:g} yet; {'; '.join(has) or 'there is none'}"
            log_event("no_limit", level="warning", scores=new.unlimited, reason=reason)
        self._status.follow(release, self._of.rate * len(self._scorer.limits))
        log_event("model_current", batch=release.batch, limits=self._scorer.limits)

    def turn(self) -> int:
        """Score the next records; return their number."""
        self._follow(0.0)
        count = 0
        for rows in self.source.read(POLL_SECONDS):
            if self._scorer is not None:
                scores = self._scorer.scores(rows)
                self._target.put(self._scorer.messages(rows, scores))
                self._status.see(rows.keys, scores)
                if not self._scorer.limits:
                    self._status.unlimited += len(scores)
                count += len(scores)
        if time.monotonic() > self._settled_at + COMMIT_SECONDS:
            self.settle()
        return count

    def settle(self) -> None:
        """Wait until the brokers have all scores; only then are their records done."""
        if self._scorer is not None:
            self._target.flush()
            crashpoints.reach("scores_written")
            self.source.commit()
        self._settled_at = time.monotonic()

"""`stream-dppca score` against the same loop without scoring, on a topic of a real broker.

    python -m benchmarks.scoring [records]

The loop without scoring reads, decodes and commits as `score` does, and writes the scores
of the first records again and again. So the ratio is what the scores, flags and contributions cost.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.service import Seconds
from consumers.kafka.cluster import KafkaCluster
from consumers.kafka.configure import kafka_config
from consumers.kafka.confluent import GroupNote, MessageProducer, Subscription
from consumers.model.releases import PublishedRelease, release_message
from consumers.protocols import TopicInfo
from consumers.scoring import score
from consumers.scoring.scorer import CurrentModel, RowsToScore, ScoredRow, Scorer
from consumers.scoring.status import ScoreStatus
from consumers.settings import ScoreSettings, load_part
from demo.broker.local import LocalBroker
from demo.telemetry import FEATURES
from stream_dppca import Limit, PrivacyStatement

TARGET = 0.5
REPEATS = 3


class Nothing(Scorer):
    """Does not score: writes the scores of the first records again and again."""

    _first: list[ScoredRow] | None = None

    def scores(self, rows: RowsToScore) -> list[ScoredRow]:
        if self._first is None:
            self._first = super().scores(rows)
            self._messages = list(super().messages(rows, self._first))
        return self._first[: len(rows.values)]

    def messages(
        self, rows: RowsToScore, scores: Sequence[ScoredRow]
    ) -> Iterator[tuple[bytes, bytes]]:
        return iter(self._messages[: len(scores)])


def release(model: str) -> PublishedRelease:
    d = len(FEATURES)
    W = np.linalg.qr(np.random.default_rng(1).standard_normal((d, 3)))[0].T
    return PublishedRelease(
        model=model,
        status="learned",
        batch=1,
        n_seen=1000,
        features=FEATURES,
        components=tuple(map(tuple, W.tolist())),
        center=(0.0,) * d,
        scale=(1.0,) * d,
        clamp=(5.0,) * d,
        mean=(0.0,) * d,
        deviation=(1.0,) * d,
        spread=(3.0, 2.0, 1.0),
        limits={"spe": (Limit(rate=0.01, value=20.0, sd=1.0),)},
        privacy=PrivacyStatement(epsilon=1, delta=1e-6, method="adaptive", private=True),
    )


def timed(
    cluster: KafkaCluster,
    config: Any,
    settings: ScoreSettings,
    scorer: type[Scorer],
    name: str,
    records: int,
) -> Seconds:
    """Seconds per record of one run."""
    setattr(score, "Scorer", scorer)  # noqa: B010
    topic = settings.input_topic
    cluster.create_topic(name, TopicInfo(1, {}), 1)
    wall, processor = time.perf_counter(), time.process_time()
    scoring = score.Scoring(
        cluster,
        CurrentModel(settings.model),
        output_topic=settings.output_topic,
        open_source=lambda release: score.open_rows(
            cluster,
            settings,
            release,
            lambda: Subscription(config, topic, name, "earliest"),
            lambda: GroupNote(config, topic, name),
        ),
        open_target=lambda: MessageProducer(config, name),
        status=ScoreStatus(),
    )
    count = scoring.run(threading.Event(), once=True)
    if count != records:
        raise RuntimeError(f"{count} scores of {records} records")
    return Seconds(
        (time.perf_counter() - wall) / records, (time.process_time() - processor) / records
    )


def main() -> None:
    records = int(sys.argv[1]) if len(sys.argv) > 1 else 300_000
    with LocalBroker() as broker:
        settings = load_part(
            ScoreSettings, {"bootstrap_servers": broker.bootstrap_servers, "input_topic": "in"}
        )
        config = kafka_config(settings)
        cluster = KafkaCluster(config)
        for topic in ("in", settings.output_topic):
            cluster.create_topic(topic, TopicInfo(1, {}), 1)
        X = np.random.default_rng(0).standard_normal((10_000, len(FEATURES))).round(3).tolist()
        values = [json.dumps(dict(zip(FEATURES, row, strict=True))).encode() for row in X]
        producer = MessageProducer(config, "in")
        for start in range(0, records, len(values)):
            producer.put((None, value) for value in values[: records - start])
        producer.flush()
        MessageProducer(config, settings.output_topic).send([release_message(release("in"))])
        best: dict[str, Seconds] = {}
        for repeat in range(REPEATS):
            for what, scorer in {"without scoring": Nothing, "score": Scorer}.items():
                found = timed(
                    cluster, config, settings, scorer, f"{what.replace(' ', '-')}-{repeat}", records
                )
                best[what] = found.best(best.get(what, found))
    for what, seconds in best.items():
        print(
            f"{what}: {1 / seconds.wall:,.0f} records/s by the wall clock, "
            f"{1 / seconds.processor:,.0f} per second of processor time"
        )
    without, ours = best["without scoring"], best["score"]
    ratio = without.processor / ours.processor
    print(
        f"ratio: {ratio:.2f} by processor time (target {TARGET}), "
        f"{without.wall / ours.wall:.2f} by the wall clock"
    )


if __name__ == "__main__":
    main()

"""The command `score`."""

from __future__ import annotations

import os
import sys
import threading
from typing import Literal

from ..events import set_up_logs
from ..kafka.configure import kafka_config
from ..kafka.confluent import GroupNote, MessageProducer, Subscription
from ..monitoring.http import HttpServer
from ..scoring.score import Scoring, ensure_scores_topic, open_rows
from ..scoring.scorer import NOT_PRIVATE, CurrentModel
from ..scoring.status import ScoreStatus
from ..settings import ScoreSettings
from ..settings.connection import reveal
from ..web.follow import Follower
from ..web.page import Page
from ..web.tracker import Tracker
from . import brokers
from .options import ScoreOptions
from .parsing import Given


def score(options: ScoreOptions, given: Given[ScoreSettings], stop: threading.Event) -> int:
    """Score the records of a topic until `stop` is set."""
    # librdkafka writes, so it reads, too.
    settings = given.load().model_copy(update={"reader": "confluent"})
    topic = options.scores_topic or f"{settings.model}.scores"
    group = options.scores_group or f"{settings.group}.scores"
    sys.stderr.write(f"warning: {NOT_PRIVATE}\n")
    cluster = brokers.connect(settings)
    config, records = kafka_config(settings), settings.input_topic
    set_up_logs(sys.stdout, settings.log_format, model=settings.model, pid=os.getpid())
    ensure_scores_topic(cluster, settings, topic, options.once)
    status, tracker = ScoreStatus(settings.stall_timeout_s), Tracker(settings.model)
    follower = Follower(cluster, settings.output_topic, tracker)
    http = HttpServer(
        settings.http_host,
        settings.http_port,
        status,
        status,
        Page(follower, tracker, status.facts),
        reveal(settings.http_token),
        settings.http_hosts,
    )
    start: Literal["earliest", "latest"] = "latest" if settings.start == "latest" else "earliest"
    scoring = Scoring(
        cluster,
        CurrentModel(settings.model),
        output_topic=settings.output_topic,
        open_source=lambda release: open_rows(
            cluster,
            settings,
            release,
            lambda: Subscription(config, records, group, start),
            lambda: GroupNote(config, records, group),
        ),
        open_target=lambda: MessageProducer(config, topic),
        status=status,
        rate=float(options.rate),
        top=options.top,
    )
    written = scoring.run(stop, once=options.once)
    http.close()
    without = f", {n} of them without a limit" if (n := status.unlimited) else ""
    sys.stderr.write(f"{written} scores written to {topic}{without}\n")
    return 0

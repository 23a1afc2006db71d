"""The options that only one command has, and the settings that each command needs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from pydantic import Field

from ..settings import (
    ClusterSettings,
    FileSettings,
    Part,
    PlanSettings,
    ScoreSettings,
    Settings,
    ViewSettings,
)
from .flags import Options


class PlanOptions(Options):
    """Options of `plan`."""

    count: int | None = Field(None, ge=1)
    """number of features, instead of their names"""
    rate: float | None = Field(None, gt=0)
    """expected records per second"""
    subjects: float | None = Field(None, gt=0)
    """with unit=subject: number of subjects; default: the places of a round"""
    presence: float = 1.0
    """with unit=subject: share of the subjects that send something in a round"""


class CheckOptions(Options):
    """Options of `check-config`."""

    offline: bool = False
    """check the settings only; do not connect to the brokers"""
    sample: int | None = None
    """read this many messages and say, on a terminal only, whether they have the features (and name
    their subjects)"""


class InspectOptions(Options):
    """Options of `inspect`."""

    as_json: bool = Field(default=False, alias="json")
    """print releases as published"""
    state: Path | None = None
    """print the last release of a state file that `run` wrote; needs no broker"""
    history: bool = False
    """print all releases that the topic still holds"""
    top: int | None = None
    """print only this many loadings, the largest ones"""


class WatchOptions(Options):
    """Options of `watch`."""

    web: bool = False
    """serve a page for a browser"""
    port: int = 8322
    """port of the page; 0 takes any free port"""
    releases: int | None = None
    """end after this many releases, older ones included; default: never"""


class ScoreOptions(Options):
    """Options of `score`."""

    about = (
        "Write SPE, T2, the projections, a flag and the largest contributions of each record of "
        "the input topic to another topic, with the current release of a model, at least once. THE "
        "SCORES ARE NOT PRIVATE: each is about one record, so their topic is as secret as the "
        "input topic, and so are the metrics of this process."
    )

    rate: Literal["0.1", "0.05", "0.01", "0.001"] = "0.01"
    """share of the records to flag by each score (SPE and T2, so up to twice this in all), by the
    limits of the release"""
    top: int = Field(3, ge=0)
    """features named for each record, those that contribute most"""
    scores_topic: str | None = None
    """topic to write to; default: <model>.scores"""
    scores_group: str | None = None
    """consumer group that remembers what has been scored; default: <group>.scores"""
    once: bool = False
    """end when all records that are in the topic at the start have been scored"""


class CompareOptions(Options):
    """Options of `compare`."""

    about = (
        "Compare two releases A and B: the angles between their components against what noise "
        "and sampling do, means and scales of the features, limits. A release is FILE (the last of "
        "its JSON lines), FILE@BATCH, or @BATCH of the model's output topic."
    )

    releases: tuple[str, str]
    """the two releases, A and B"""


class RunOptions(Options):
    """Options of `run`."""

    input: str
    """file to read, also .gz, or - for standard input; in csv and jsonl each line is one
    record, even if a line break is in quotes"""
    format: Literal["csv", "jsonl", "parquet", "npy"] | None = None
    """format of the file; default: by its name"""
    state: Path | None = None
    """file that keeps the state, to resume later"""
    once: bool = False
    """learn from the whole file as one batch: one release, the most accurate; the file is read
    twice, and all of it must fit into memory"""
    time: str | None = None
    """with --subject: column with the time of each row, ISO 8601 or seconds since 1970"""
    begin: str | None = Field(default=None, alias="from")
    """with --subject: beginning of the first round, a date or a time in UTC, such as 2026-01-31;
    not needed with a state, which has the beginning"""
    until: str | None = None
    """with --subject: end of the last round; all rounds before it are released, also empty ones,
    and rows of other times are ignored"""
    new_records: bool = False
    """the input holds only records that were not used before, so skip none of them"""
    as_json: bool = Field(default=False, alias="json")
    """print releases as JSON lines even on a terminal"""


#: Names that commands with these settings do not look at. The input of `run` gives itself a name.
UNUSED: Final[dict[type[Part], Sequence[str]]] = {
    FileSettings: ("input_topic", "group", "output_topic", "state_topic"),
    ViewSettings: ("group", "state_topic"),
}
#: Of each command, its own options and the settings that it needs.
OWN: Final[dict[str, tuple[type[Options], type[Part]]]] = {
    "serve": (Options, Settings),
    "plan": (PlanOptions, PlanSettings),
    "check-config": (CheckOptions, Settings),
    "show-config": (Options, Settings),
    "topics": (Options, ClusterSettings),
    "inspect": (InspectOptions, ViewSettings),
    "watch": (WatchOptions, ViewSettings),
    "compare": (CompareOptions, ViewSettings),
    "score": (ScoreOptions, ScoreSettings),
    "run": (RunOptions, FileSettings),
}

"""Readers in a process that runs tasks of an engine.

A task reads one part of a batch, but its process runs many tasks, so readers are kept and assigned
again. They join no consumer group and commit nothing.
"""

from __future__ import annotations

from ..protocols import Reader
from .cluster import KafkaCluster
from .config import TaskConnection

readers: dict[tuple[str, str, bool], Reader] = {}


def reader_of(connection: TaskConnection, topic: str, *, stamped: bool = False) -> Reader:
    """The reader of a topic in this process."""
    key = connection.name, topic, stamped
    if key not in readers:
        readers[key] = KafkaCluster(connection.config()).reader(topic, stamped=stamped)
    return readers[key]

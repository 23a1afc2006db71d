"""Starts the Spark session on which a service runs its batches."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator

from stream_dppca.errors import ParameterError

from ..errors import ConfigurationError
from ..kafka.config import TaskConnection
from ..messages.recipe import MessageRecipe
from ..settings import Settings
from ..settings.connection import reveal
from .executors import CoreWatch
from .remote import Remote


@contextlib.contextmanager
def spark_engine(settings: Settings, connection: TaskConnection) -> Iterator[Remote]:
    """Start a session on the cluster of these settings; yield what reading batches on it needs.

    Parameters
    ----------
    settings
        All settings of the service, with `engine` spark.
    connection
        Connection to Kafka.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise ConfigurationError("`engine`: spark needs pyspark: pip install 'stream-dppca[spark]'")
    from pyspark.sql import SparkSession

    from stream_dppca.spark import SparkEngine

    builder = SparkSession.builder.master(settings.spark_master).appName(
        f"stream-dppca-{settings.model}"
    )
    conf = {
        "spark.ui.enabled": "false",  # it would show the duration of each task
        "spark.ui.showConsoleProgress": "false",  # so would a bar, and in the middle of the log
        "spark.executorEnv.OMP_NUM_THREADS": "1",
        "spark.executorEnv.OPENBLAS_NUM_THREADS": "1",
    }
    if settings.unit == "subject":
        # Tasks return records, which Spark may write to a disk when memory is short.
        conf["spark.io.encryption.enabled"] = "true"
        conf["spark.driver.maxResultSize"] = "0"  # `remote_rows` bounds the size
    for name, value in settings.spark_conf.items():
        conf[name] = reveal(value) or ""
    # A session that is not started by spark-submit reads the environment, not its settings.
    os.environ["PYSPARK_PYTHON"] = conf.get("spark.pyspark.python", sys.executable)
    for name, text in conf.items():
        builder = builder.config(name, text)
    session = builder.getOrCreate()
    try:
        session.sparkContext.setLogLevel("ERROR")
        try:
            engine = SparkEngine(session, allow_insecure=settings.spark_allow_insecure)
        except ParameterError as error:
            raise ConfigurationError(f"`spark_conf`: {error}") from None
        yield Remote(
            engine=engine,
            # Executors come and go; at this moment there may be none.
            tasks=lambda: settings.spark_tasks or engine.parallelism,
            connection=connection,
            recipe=MessageRecipe.of(settings),
            cores=CoreWatch(lambda: engine.executors, engine.cancel),
            lost=lambda: engine.stopped,
        )
    finally:
        with contextlib.suppress(Exception):  # the JVM may be gone
            session.stop()

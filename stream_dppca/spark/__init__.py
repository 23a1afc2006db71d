"""One model over a cluster of Apache Spark: `pip install 'stream-dppca[spark]'`.

`fit` learns from data frames. `SparkEngine` runs the tasks of `stream_dppca.engine`, whatever they
read. Spark schedules, and executors read and add up; the driver runs the mechanism: noise, state
and releases stay there. docs/scale.md explains when a cluster pays off.
"""

from .engine import SparkEngine, refuse_exposed
from .frames import fit

__all__ = ["SparkEngine", "fit", "refuse_exposed"]

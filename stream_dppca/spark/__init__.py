"""One model over a cluster of Apache Spark: `pip install 'stream-dppca[spark]'`.

`fit` learns from data frames. `SparkEngine` runs the tasks of `stream_dppca.engine`, whatever they
read. Spark schedules; executors read and add up; the driver keeps the mechanism: noise, state and
releases never leave it. docs/scale.md says when it pays.
"""

from .engine import SparkEngine, refuse_exposed
from .frames import fit

__all__ = ["SparkEngine", "fit", "refuse_exposed"]

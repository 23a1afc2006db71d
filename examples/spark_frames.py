"""Learn one private model from Parquet files of telemetry, on Apache Spark.

    python examples/spark_frames.py                        # Spark inside this process
    python examples/spark_frames.py spark://master:7077    # a cluster that shares this folder

Executors read the files and add the records up; this process has the noise, the state and the
releases. Each row has a public number, its place in the stream, and that number decides which batch
the row is in. So the rows may be in any order and in any number of files. The model is not told
means, units or scales.

A cluster without authentication and encryption is refused: put `spark.authenticate`,
`spark.network.crypto.enabled` and `spark.io.encryption.enabled` into its `spark-defaults.conf`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from stream_dppca import DPPCA
from stream_dppca.spark import fit

FEATURES = ("cpu_percent", "memory_bytes", "disk.read_bytes_per_s", "temperature_c")
TYPICAL = np.array([45.0, 6e9, 8e7, 55.0])
SWING = np.array([12.0, 8e8, 2e7, 4.0])
#: Weight of the load of a machine in each feature.
WEIGHTS = np.array([0.9, 0.5, 0.2, 0.7])
NOISE = 0.4
BATCH, BATCHES = 20_000, 6


def write_telemetry(folder: Path, files: int = 3) -> None:
    """Write rows in no order, some of them with a missing value."""
    rng = np.random.default_rng(1)
    n = BATCH * BATCHES
    load = rng.standard_normal((n, 1))
    X = TYPICAL + SWING * (load * WEIGHTS + NOISE * rng.standard_normal((n, len(FEATURES))))
    X[rng.random(n) < 0.01, 0] = np.nan
    for i, slots in enumerate(np.array_split(rng.permutation(n), files)):
        columns = {name: X[slots, j] for j, name in enumerate(FEATURES)}
        pq.write_table(pa.table({"number": slots, **columns}), folder / f"{i}.parquet")


def true_direction() -> np.ndarray:
    """Return the main direction of the standardised features, unknown in a real stream."""
    follows = WEIGHTS / np.hypot(WEIGHTS, NOISE)
    correlations = np.outer(follows, follows)
    np.fill_diagonal(correlations, 1.0)
    return np.linalg.eigh(correlations)[1][:, -1]


def learn(spark: SparkSession, folder: Path) -> DPPCA:
    return fit(
        spark.read.parquet(str(folder)),
        features=FEATURES,
        epsilon=1.0,
        delta=1e-6,
        batch_size=BATCH,
        slot="number",
    )


def main() -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    master = sys.argv[1] if len(sys.argv) > 1 else "local[2]"
    spark = SparkSession.builder.master(master).appName("telemetry").getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        write_telemetry(Path(folder))
        model = learn(spark, Path(folder))
    spark.stop()

    print(f"batches: {model.n_batches}, records: {model.n_seen}")
    loadings = model.components[0]
    for name, loading in zip(FEATURES, loadings, strict=True):
        print(f"  {name:24} {loading:+.2f}")
    print(f"cosine with the true direction: {abs(loadings @ true_direction()):.3f}")
    print(f"private: {model.privacy.private}, epsilon {model.privacy.epsilon:g} per record")


if __name__ == "__main__":
    main()

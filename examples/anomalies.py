"""Private anomaly scores in a river pipeline, on sensor readings of a space shuttle.

    python examples/anomalies.py

`datasets.Shuttle` comes with river: records of nine sensors, 7 % of them anomalies. Each record is
scored before the model learns from it, as in production. The model is told only the names of the
sensors: it learns centres and scales, too, under the same guarantee. As long as nothing has been
learned (before the first batch is full), there are no scores.

A record can be an anomaly in two ways. It may lie far out *along* the components, with more of the
usual variation, or *away* from them, as a combination that does not occur otherwise
(`SubspaceDistance`). Here the anomalies are so many and so large that they are a good part of the
variation, so the distance along the components finds them.

A score is about one record, so it is not private for the record that is scored. The model is
private, for the records that it has learned from.
"""

from __future__ import annotations

import math
import warnings

from river import compose, datasets, metrics

from stream_dppca import DPPCA, NothingLearnedWarning, SubspaceDistance

SENSORS = tuple(f"f{i}" for i in range(1, 10))
RECORDS = 12_000


def main() -> None:
    # A pipeline also transforms the records that it learns from, even before the first release.
    warnings.simplefilter("ignore", NothingLearnedWarning)
    pca = DPPCA(features=SENSORS, epsilon=2.0, delta=1e-6, batch_size=3000, n_components=2)
    pipeline = compose.Select(*SENSORS) | pca
    distance = SubspaceDistance(pca)
    along, away = metrics.ROCAUC(n_thresholds=50), metrics.ROCAUC(n_thresholds=50)
    for record, anomaly in datasets.Shuttle().take(RECORDS):
        if pca.components.size:  # something is known
            scores = pipeline.transform_one(record)
            along.update(anomaly, squashed(math.hypot(*scores.values())))
            away.update(anomaly, squashed(distance.score_one(record)))
        pipeline.learn_one(record)

    print(f"batches: {pca.n_batches}, records: {pca.n_seen}")
    for component in pca.components:
        ordered = sorted(zip(SENSORS, component, strict=True), key=lambda pair: -abs(pair[1]))
        print("component:", ", ".join(f"{name} {loading:+.2f}" for name, loading in ordered[:4]))
    print(f"AUC along the components: {along.get():.3f}, away from them: {away.get():.3f}")
    print(f"private: {pca.privacy.private}, epsilon {pca.privacy.epsilon:g} per {pca.privacy.unit}")


def squashed(score: float) -> float:
    """A score between 0 and 1, where the metric has its thresholds, in the same order."""
    return score / (1 + score)


if __name__ == "__main__":
    main()

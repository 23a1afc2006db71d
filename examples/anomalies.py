"""Anomalies with limits that a private model gives, on sensor readings of a space shuttle.

    python examples/anomalies.py

`datasets.Shuttle` comes with river: records of nine sensors, 7 % of them anomalies. Each record is
judged before the model learns from it, as in production. The model is told only the names of the
sensors: it learns centres, scales and limits, too, under the same guarantee. As long as it does not
know a limit, `is_anomaly` is None.

A record can be an anomaly in two ways. It may lie far out *along* the components, with more of the
usual variation (T2), or *away* from them, as a combination that does not occur otherwise (SPE).
Each has its limits: scores that 10, 5, 1 or .1 % of the records exceed. Here anomalies are so many
that they are a part of the variation, so T2 finds them, and 10 % is the limit to take.

A score is about one record, so it is not private for the record that is scored. The model is
private, for the records that it has learned from.
"""

from __future__ import annotations

from river import datasets, metrics

from stream_dppca import DPPCA

SENSORS = tuple(f"f{i}" for i in range(1, 10))
RATE, BY = 0.1, "t2"


def main() -> None:
    pca = DPPCA(features=SENSORS, epsilon=2.0, delta=1e-6, batch_size=4000, n_components=2)
    judged, strangest = metrics.ConfusionMatrix(), (0.0, {})
    for record, anomaly in datasets.Shuttle():
        alarm = pca.is_anomaly(record, rate=RATE, by=BY)
        if alarm is not None:
            judged.update(bool(anomaly), alarm)
        if alarm:
            strangest = max(strangest, (pca.t2(record), record), key=lambda pair: pair[0])
        pca.learn_one(record)

    release = pca.last_release
    print(f"batches: {pca.n_batches}, records: {pca.n_seen}, judged: {judged.n_samples:.0f}")
    for score, limits in release.limits.items():
        told = ", ".join(f"{100 * m.rate:g} % > {m.value:.3g} ± {m.sd:.2g}" for m in limits)
        print(f"limits of {score}: {told}")
    caught, missed = judged[True][True], judged[True][False]
    print(
        f"alarms: {caught:.0f} of {caught + missed:.0f} anomalies, "
        f"and {judged[False][True]:.0f} of {judged.support(False):.0f} ordinary records"
    )
    score, record = strangest
    parts = list(pca.contributions(record, to=BY).items())[:3]
    print(f"strangest: T2 {score:.0f};", ", ".join(f"{name} {part:+.0f}" for name, part in parts))
    print(f"private: {pca.privacy.private}, epsilon {pca.privacy.epsilon:g} per {pca.privacy.unit}")


if __name__ == "__main__":
    main()

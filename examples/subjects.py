"""Privacy per device, not per record: a simulated fleet that reports every hour.

    python examples/subjects.py

Each of 3000 devices sends a few records per hour, some many more. With `PerSubject` the
guarantee is about *everything* that one device sends within a day: what, when, how many records,
whether any at all. Two things differ from privacy per record:

- A round ends when a clock says so, never because of the data: `close_round()`, here every hour.
- The number of records is secret, so a release does not contain it. It has a noisy number of
  devices instead.

In the last hour one device sends a thousand absurd records first. It still has only one place, with
its first few records, so the component hardly changes.
"""

from __future__ import annotations

import numpy as np

from stream_dppca import DPPCA, PerSubject, plan_subjects

FEATURES = ("cpu", "memory", "temperature")
DEVICES, HOURS = 3000, 12


def records_of_an_hour(rng: np.random.Generator) -> list[dict[str, float | str]]:
    """Telemetry in which all three features follow the load of the device."""
    records: list[dict[str, float | str]] = []
    for device in range(DEVICES):
        if rng.random() > 0.9:  # silent for this hour
            continue
        habit = rng.normal()
        for _ in range(1 + rng.poisson(2)):
            load = habit + 0.5 * rng.normal()
            noise = 0.4 * rng.normal(size=3)
            records.append(
                {
                    "device": f"device-{device}",
                    "cpu": 40 + 15 * (load + noise[0]),
                    "memory": 8e9 + 1e9 * (0.8 * load + noise[1]),
                    "temperature": 55 + 4 * (0.6 * load + noise[2]),
                }
            )
    return records


def main() -> None:
    # Before any data is touched: is this fleet large enough?
    print(plan_subjects(d=3, epsilon=2.0, delta=1e-6, subjects=DEVICES, presence=0.9, period=24))
    print()

    pca = DPPCA(
        features=FEATURES,
        epsilon=2.0,
        delta=1e-6,
        unit=PerSubject("device", places=DEVICES, period=24),  # epsilon is for 24 rounds: a day
    )
    rng = np.random.default_rng(1)
    for hour in range(HOURS):
        if hour == HOURS - 1:
            flood = {"device": "device-0", "cpu": 1e6, "memory": 0.0, "temperature": 0.0}
            for _ in range(1000):
                pca.learn_one(flood)
        for record in records_of_an_hour(rng):
            pca.learn_one(record)
        release = pca.close_round()  # the clock
        about = "" if release.subjects is None else f", about {release.subjects:.0f} devices"
        print(f"hour {hour}: {release.status}{about}")

    loadings = zip(FEATURES, pca.components[0], strict=True)
    print("component:", ", ".join(f"{name} {loading:+.2f}" for name, loading in loadings))
    privacy = pca.privacy
    print(
        f"private: {privacy.private}, epsilon {privacy.epsilon:g} per {privacy.unit}, "
        f"over {privacy.scope}"
    )
    for time, epsilon in privacy.epsilon_over.items():
        print(f"epsilon over {time}: {epsilon:.1f}")


if __name__ == "__main__":
    main()

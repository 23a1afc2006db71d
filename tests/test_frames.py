"""Frames of any kind: the same records, the same result, and the kind that came in goes out."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from river import compose

from benchmarks.baselines import analyze_gauss, oja
from stream_dppca import DPPCA, ParameterError, PerSubject, SubspaceDistance
from stream_dppca.frames import cells_of, column, raw_column
from stream_dppca.subjects.ids import canonical, canonical_all
from stream_dppca.values import number

FEATURES = ("a", "b", "c")
KINDS = (pd.DataFrame, pl.DataFrame, pa.table)


def stream(n: int = 1200) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    a = rng.standard_normal(n) * 3
    return {
        "a": a,
        "b": (a + rng.standard_normal(n)).astype(np.float32),
        "c": rng.integers(-5, 5, n),
        "other": np.full(n, "text", dtype=object),
    }


def model(**more: Any) -> DPPCA:
    settings = {"epsilon": 5.0, "delta": 1e-4, "batch_size": 300, "seed": 3, "n_components": 2}
    return DPPCA(features=FEATURES, **{**settings, **more})


def values(frame: Any) -> np.ndarray:
    """The numbers of a frame of any kind."""
    if isinstance(frame, pa.Table):
        return np.column_stack([frame[name].to_numpy() for name in frame.column_names])
    return frame.to_numpy()


@pytest.mark.parametrize("kind", KINDS, ids=["pandas", "polars", "pyarrow"])
def test_what_comes_in_goes_out(kind: Any) -> None:
    columns = stream()
    known, pca = model(), model()
    known.learn_array(np.column_stack([columns[name] for name in FEATURES]).astype(float))
    frame = kind(columns)
    for start in range(0, 1200, 500):  # not in whole batches
        pca.learn_many(frame[start : start + 500])
    assert pca.n_batches == 4 and np.array_equal(pca.components, known.components)
    scores = pca.transform_many(frame)
    assert type(scores) is type(frame)
    names = [0, 1] if kind is pd.DataFrame else ["0", "1"]
    found = scores.column_names if isinstance(scores, pa.Table) else list(scores.columns)
    assert found == names
    X = np.column_stack([columns[name] for name in FEATURES]).astype(float)
    assert np.array_equal(values(scores), pca.transform(X))


def in_units(x: Any) -> dict[str, float]:
    """The function of docs/river.md."""
    units = {"a": 2.0, "b": 4.0, "c": 1.0}
    return {name: number(x.get(name)) / unit for name, unit in units.items()}


def test_in_a_pipeline_behind_public_units() -> None:
    X = np.random.default_rng(0).standard_normal((300, 3)) * [2.0, 4.0, 1.0]
    known = model(center="none", scales=None)
    pipeline = compose.FuncTransformer(in_units) | model(center="none", scales=None)
    known.learn_array(X / [2.0, 4.0, 1.0])
    for row in X.tolist():
        pipeline.learn_one(dict(zip(FEATURES, row, strict=True)))
    pipeline.learn_one({"a": "text"})  # a null in its slot, as without the units
    assert pipeline["DPPCA"].n_seen == 301
    assert pipeline["DPPCA"].n_batches == known.n_batches > 0
    assert np.array_equal(pipeline["DPPCA"].components, known.components)


@pytest.mark.parametrize("kind", KINDS, ids=["pandas", "polars", "pyarrow"])
def test_baselines_take_frames(kind: Any) -> None:
    columns = {name: values for name, values in stream().items() if name != "other"}
    X = np.column_stack(list(columns.values())).astype(float)
    steps = [0.01] * len(X)
    assert np.array_equal(
        oja(kind(columns), steps=steps, seed=1).components, oja(X, steps=steps, seed=1).components
    )
    options = {"epsilon": 1.0, "delta": 1e-5, "clip": 10.0, "seed": 1}
    assert np.array_equal(
        analyze_gauss(kind(columns), **options).components, analyze_gauss(X, **options).components
    )


def test_missing_columns_and_empty_frames() -> None:
    for frame in (pl.DataFrame({"a": [1.0] * 60}), pa.table({"a": [1.0] * 60})):
        pca = model(batch_size=60, center="none", scales=None)
        pca.learn_many(frame)
        assert pca.n_batches == 1
        pca.learn_many(frame[:0])
        assert pca.n_seen == 60
        assert type(pca.transform_many(frame)) is type(frame)


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [1, 2],
        {"a": [1.0]},
        np.eye(3),
        pl.DataFrame({"a": [1.0]}).lazy(),
        pl.Series([1.0]),
    ],
)
def test_what_is_not_a_frame(wrong: Any) -> None:
    for method in (model().learn_many, model().transform_many):
        with pytest.raises(ParameterError, match="`X` must be a frame in memory: pandas, polars"):
            method(wrong)


@pytest.mark.parametrize("wrong", [None, [1.0, 2.0], "text", 3.0, np.ones(4), (1, 2)])
def test_what_is_not_a_dict_is_a_null(wrong: Any) -> None:
    """An error would leave the record without a slot, and shift all records after it."""
    for pca in (model(), SubspaceDistance(model())):
        pca.learn_one(wrong)
    pca = model()
    pca.learn_one(wrong)
    pca.learn_one({})
    pca.learn_one(pd.Series({"a": 1.0, "b": 2.0, "c": 3.0}))
    assert pca.n_seen == 3


def test_a_cell_that_python_cannot_hold_changes_no_other() -> None:
    """A time in nanoseconds in a union: arrow cannot list the column, but its numbers are read."""
    times = pa.array([1], pa.timestamp("ns"))
    kinds = pa.array([0, 1, 0], pa.int8())
    mixed = pa.UnionArray.from_dense(
        kinds, pa.array([0, 0, 1], pa.int32()), [pa.array([1.5, 2.5]), times]
    )
    found = column(pa.table({"a": mixed}), "a")
    assert np.array_equal(found, [1.5, np.nan, 2.5], equal_nan=True)


@pytest.mark.parametrize("kind", KINDS, ids=["pandas", "polars", "pyarrow"])
def test_subjects_in_frames(kind: Any) -> None:
    """The ids of a column are those of the dicts, in any kind of frame."""
    columns = {**stream(300), "device": [f"d{i % 100}" for i in range(300)]}
    settings = {"unit": PerSubject("device", places=200), "batch_size": None}
    by_frame, by_dict = model(**settings), model(**settings)
    by_frame.learn_many(kind(columns))
    for row in pd.DataFrame(columns).to_dict("records"):
        by_dict.learn_one(row)
    for pca in (by_frame, by_dict):
        pca.close_round()
    assert by_frame.state() == by_dict.state()


@pytest.mark.parametrize(
    "dtype", ["Int64", "UInt64", "int64[pyarrow]", "uint64[pyarrow]", "category", object]
)
def test_a_missing_id_changes_no_other(dtype: Any) -> None:
    """As floats, the ids of all others would be one."""
    for missing in (5, None):
        values = pd.Series([2**60 + i for i in range(50)] + [missing], dtype=object)
        ids = values.astype("Int64").astype(dtype)
        others = canonical_all(raw_column(pd.DataFrame({"device": ids}), "device"))[:50]
        assert others == [b"%d" % (2**60 + i) for i in range(50)]


# Cells that a library cannot turn into a value of Python


def not_utf8(type: Any = pa.string()) -> pa.Array:  # noqa: B008
    """Three texts, of which the second is not UTF-8."""
    return pa.array([b"x", b"\xffSECRET", b"z"]).view(type)


def out_of_range(type: Any, far: int) -> pa.Array:
    return pa.array([1, far, 3], pa.int32() if type == pa.date32() else pa.int64()).view(type)


def arrow_series(cells: pa.Array) -> pd.Series:
    return pd.Series(pd.arrays.ArrowExtensionArray(cells))


BROKEN = {
    "Arrow text": lambda: arrow_series(not_utf8()),
    "text": lambda: pd.Series(
        pd.arrays.ArrowStringArray(pa.chunked_array([not_utf8(pa.string()).cast("large_string")]))
    ),
    "category": lambda: arrow_series(not_utf8().dictionary_encode()),
    "dates": lambda: arrow_series(out_of_range(pa.date32(), 2**30)),
    "times": lambda: arrow_series(out_of_range(pa.timestamp("ms"), 2**62)),
    "durations": lambda: arrow_series(out_of_range(pa.duration("s"), 2**62)),
    "polars dates": lambda: pl.Series([1, 2**30, 3]).cast(pl.Date),
    "polars times": lambda: pl.Series([1, 2**62, 3]).cast(pl.Datetime("ms")),
    "polars durations": lambda: pl.Series([1, 2**62, 3]).cast(pl.Duration("ms")),
    "arrow": lambda: pa.chunked_array([not_utf8()]),
    "arrow dates": lambda: pa.chunked_array([out_of_range(pa.date32(), 2**30)]),
}


def frame_with(name: str, cells: Any) -> Any:
    """A frame of three rows, of the library of the cells."""
    others = {"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 6.0], "c": [7.0, 8.0, 9.0]}
    kind = {pd.Series: pd.DataFrame, pl.Series: pl.DataFrame}.get(type(cells), pa.table)
    return kind({**others, name: cells})


@pytest.mark.parametrize("broken", BROKEN)
def test_a_cell_that_cannot_be_read_is_a_null_of_its_own(
    broken: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its library raises an error for the whole column, which may quote the cell."""
    cells = BROKEN[broken]()
    frame = frame_with("b", cells)
    pca = model()
    pca.learn_many(frame)
    assert pca.n_seen == 3
    assert np.asarray(column(frame, "a")).tolist() == [1.0, 2.0, 3.0]
    assert np.isnan(column(frame, "b")).all()
    text = "text" in broken.lower() or broken in ("category", "arrow")
    expected = [b"x", None, b"z"] if text else [None] * 3
    assert canonical_all(raw_column(frame, "b")) == expected
    assert canonical_all(cells_of(cells)) == expected
    for way in (
        lambda pca: pca.learn_many(frame_with("device", cells)),
        lambda pca: pca.learn_array(np.ones((3, 3)), subjects=cells),
    ):
        by_subject = model(unit=PerSubject("device", places=200), batch_size=None)
        way(by_subject)
        assert by_subject._slots._fill + by_subject._slots._waiting.fill == (2 if text else 0)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])
@pytest.mark.parametrize("cell", [2 + 0j, 2 + 1j, np.complex128(3 + 1j), {"x": 1}, [1], None, 1.5])
def test_one_id_changes_no_other(kind: Any, cell: Any) -> None:
    expected = [b"0", b"1", canonical(cell), b"3"]
    ids = [0, 1, cell, 3]
    as_objects = (
        pl.Series(ids, dtype=pl.Object)
        if kind is pl.DataFrame
        else np.array([*ids, None], dtype=object)[:4]
    )
    assert canonical_all(raw_column(kind({"id": as_objects}), "id")) == expected
    if kind is pd.DataFrame:
        assert canonical_all(raw_column(kind({"id": ids}), "id")) == expected
        assert canonical_all(cells_of(pd.Series(ids))) == expected
    if isinstance(cell, complex):
        assert canonical_all(np.array(ids)) == expected


def test_a_complex_id_is_its_real_part_if_it_has_no_other() -> None:
    assert canonical_all([1 + 0j, np.complex64(2), 1j, complex("nan")]) == [b"1", b"2", None, None]


@pytest.mark.parametrize("cell", ["1.25", "oops", "", "NA", "1e999", "1j", "9" * 30, "true", "-"])
def test_declared_types_keep_a_cell_from_changing_others(cell: str) -> None:
    """The declarations that docs/privacy.md recommends, each with one cell replaced."""
    text = f"id,a,b,c\n9007199254740993,1,2,3\n{cell},{cell},5,6\n9007199254740995,7,8,9\n"
    types = dict.fromkeys(FEATURES, pl.Float64) | {"id": pl.String}
    declared = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
    features = list(FEATURES)
    declared[features] = declared[features].apply(pd.to_numeric, errors="coerce")
    polars = pl.read_csv(io.StringIO(text), schema_overrides=types, ignore_errors=True)
    for frame in (declared, polars):
        X = np.column_stack([column(frame, name) for name in FEATURES])
        assert X[[0, 2]].tolist() == [[1, 2, 3], [7, 8, 9]]
        ids = canonical_all(raw_column(frame, "id"))
        assert ids[::2] == [b"9007199254740993", b"9007199254740995"]


@pytest.mark.parametrize("cell", ["oops", None, 1j, np.complex64(1), {"x": 1}, [1], 2**70])
def test_objects_keep_a_cell_from_changing_others(cell: Any) -> None:
    dicts = [{"id": 2**53 + 1, "a": np.float64(0.1)}, {"id": cell, "a": cell}, {"id": 3, "a": 7}]
    polars = pl.DataFrame(
        {name: pl.Series([row.get(name) for row in dicts], dtype=pl.Object) for name in ("id", "a")}
    )
    for frame in (pd.DataFrame(dicts, dtype=object), polars):
        assert column(frame, "a")[::2].tolist() == [0.1, 7.0]
        assert canonical_all(raw_column(frame, "id"))[::2] == [b"9007199254740993", b"3"]

"""Places in a round, the rows that are kept, and copies that must not hold the table."""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_dppca.participation import PerSubject
from stream_dppca.slots import SlotBuffer
from stream_dppca.subjects import SubjectTable, first_rows
from tests.conftest import FloatArray
from tests.subjects.fleets import model, table

ACCENTS = "\u0301\u0316" * 100_000  # whose normal form takes minutes


def content(filled: SubjectTable) -> list[tuple[int, ...]]:
    """Place and values of every row that was kept, in order."""
    filled._enter_waiting()
    rows = filled._rows[: filled._fill]
    return [
        (place, *row) for place, row in zip(filled._place.tolist(), rows.tolist(), strict=False)
    ]


def reference(X: FloatArray, ids: list[Any], size: int, records: int) -> list[tuple[int, ...]]:
    """The rule in plain Python."""
    places: dict[Any, int] = {}
    taken: dict[int, int] = {}
    kept = []
    for row, who in zip(X.tolist(), ids, strict=True):
        if who is None:
            continue
        if who not in places:
            if len(places) == size:
                continue
            places[who] = len(places)
        place = places[who]
        if taken.get(place, 0) < records:
            taken[place] = taken.get(place, 0) + 1
            kept.append((place, *row))
    return kept


@settings(max_examples=80, deadline=None)
@given(
    ids=st.lists(st.none() | st.integers(0, 12), max_size=80),
    size=st.integers(1, 15),
    records=st.integers(1, 4),
    cuts=st.lists(st.integers(0, 80), max_size=4),
    ways=st.lists(
        st.sampled_from(["dict", "frame", "array", "list", "kept"]), min_size=5, max_size=5
    ),
)
def test_all_ways_in_follow_one_rule(
    ids: list[int | None], size: int, records: int, cuts: list[int], ways: list[str]
) -> None:
    X = np.arange(len(ids) * 2.0).reshape(-1, 2)
    filled = table(2, size, records)
    edges = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    for start, stop, way in zip(edges, edges[1:], ways, strict=False):
        part, who = X[start:stop], ids[start:stop]
        if way == "dict":
            for row, one in zip(part.tolist(), who, strict=True):
                filled.put_dict({0: row[0], 1: row[1], "id": one})
        elif way == "frame":
            frame = pd.DataFrame(part, columns=[0, 1])
            frame["id"] = who
            filled.put_frame(frame)
        elif way == "kept":  # by a task that has read this part by itself
            kept = first_rows(who, records)
            filled.put_rows(part[kept], [who[i] for i in kept])
        else:
            filled.put_rows(part, who if way == "list" else np.array(who, dtype=object))
    assert content(filled) == reference(X, ids, size, records)


def test_a_subclass_makes_up_no_subject() -> None:
    """A `Counter` says 0 of a key that it lacks, and a `defaultdict` inserts it."""
    records = [Counter(x=1), defaultdict(float, x=1.0)]
    filled = table(2, 5)
    for record in records:
        filled.put_dict(record)
    assert [len(record) for record in records] == [1, 1] and filled.close().present() == 0


def test_a_full_table_of_many_subjects() -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 3000, 20_000)
    X = np.arange(20_000.0)[:, np.newaxis]
    filled = table(1, 2000, 4)
    for start in range(0, 20_000, 1700):
        filled.put_rows(X[start : start + 1700], ids[start : start + 1700])
    assert content(filled) == reference(X, ids.tolist(), 2000, 4)


def test_records_without_a_subject_are_ignored_whatever_they_are() -> None:
    filled = table(2, 5)
    bad: list[Any] = [
        {0: 1.0, 1: 2.0},
        {"id": None, 0: 1.0, 1: 1.0},
        {"id": float("nan")},
        None,
        7,
        [],
        "id",
    ]
    for x in bad:
        filled.put_dict(x)
    filled.put_frame(pd.DataFrame({0: [1.0], 1: [2.0]}))
    filled.put_frame(pd.DataFrame([[1.0, 2.0, "a", "b"]], columns=[0, 1, "id", "id"]))
    assert content(filled) == [] and filled.close().present() == 0


@pytest.mark.parametrize("long", [ACCENTS, ACCENTS.encode(), "x" * 513])
def test_a_long_id_takes_no_place_by_any_way_in(long: Any) -> None:
    polars, pa = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    filled = table(2, 3)
    columns = {"0": [1.0, 2.0], "1": [1.0, 2.0], "id": [long, long[:1]]}
    filled.put_dict({0: 1.0, 1: 1.0, "id": long})
    filled.put_rows(np.ones((1, 2)), [long])
    filled.put_rows(np.ones((1, 2)), np.array([long]))
    filled.put_rows(np.ones((1, 2)), np.array([long], dtype=object))
    for frame in (pd.DataFrame(columns), polars.DataFrame(columns), pa.table(columns)):
        named = SubjectTable(("0", "1"), PerSubject("id", places=3, records=3), filled.reading)
        named.put_frame(frame)
        assert len(named._places) == 1
    filled._enter_waiting()
    assert not filled._places
    assert first_rows([long, "a", long], 2) == [1]


def test_spellings_of_one_id_share_a_place() -> None:
    filled = table(1, 5, records=9)
    for who in ("1", 1, b"1", 1.0, np.int32(1), "1.0"):
        filled.put_dict({0: 0.0, "id": who})
        filled.put_rows(np.zeros((1, 1)), [who])
    assert {place for place, _ in content(filled)} == {0}


class _Interrupted(BaseException):
    """As a KeyboardInterrupt."""


@pytest.mark.parametrize("place", ["put_dict", "take", "_enter"])
def test_an_interrupt_gives_no_row_to_another_subject(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that continues after Ctrl-C loses rows, and never mixes them up."""
    filled = table(2, size=3000, records=2)
    where: Any = SubjectTable if place == "_enter" else SlotBuffer
    done = getattr(where, place)
    calls = 0

    def stop_at_times(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise _Interrupted
        result = done(*arguments)
        if calls == 4:
            raise _Interrupted
        return result

    with monkeypatch.context() as patched:
        patched.setattr(where, place, stop_at_times)
        for i in range(5000):
            who = i % 2500
            with contextlib.suppress(_Interrupted):
                filled.put_dict({0: who, 1: who, "id": who})
        with contextlib.suppress(_Interrupted):
            filled._enter_waiting()
    assert calls > 1
    whose = {number: int(name) for name, number in filled._places.items()}
    kept = content(filled)
    assert len(kept) > 500
    assert all(whose[place] == row[0] for place, *row in kept)


def test_copies_pickles_and_children_come_out_empty() -> None:
    est = model(2, 200)
    secret = 123456.789
    est.learn_one({0: secret, 1: 1.0, "id": "a"})  # waiting
    est.learn_array(np.array([[secret, 2.0]]), subjects=["b"])
    table = est._slots
    assert isinstance(table, SubjectTable) and len(table._places) == 2
    copies = [copy.copy(est._slots), copy.deepcopy(est), pickle.loads(pickle.dumps(est))]
    copies += [est.clone(), pickle.loads(pickle.dumps(table)), type(est).from_state(est.state())]
    for other in copies:
        found = other if isinstance(other, SubjectTable) else other._slots
        assert isinstance(found, SubjectTable)
        assert (found._fill, found._places, found._waiting.fill) == (0, {}, 0)
    assert b"123456.789" not in pickle.dumps(est) and repr(secret) not in str(est.state())
    assert np.float64(secret).tobytes() not in pickle.dumps(est)

    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, b"%d" % len(table._places))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 9) == b"0"
    assert len(table._places) == 2
    for end in (read, write):
        os.close(end)


@pytest.mark.parametrize("way", ["dict", "array"])
def test_nothing_of_a_round_is_left_in_the_next(way: str) -> None:
    filled = table(1, 3, records=1)
    for _ in range(3):
        for who in ("a", "b", "c", "d"):
            if way == "dict":
                filled.put_dict({0: 1.0, "id": who})
            else:
                filled.put_rows(np.ones((1, 1)), [who])
        assert filled.close().present() == 3
    assert filled.close().present() == 0

"""Points become rows: the language of features, the formats, the fold and its mutants."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.errors import ConfigurationError
from consumers.messages import fold as folding
from consumers.messages import series as series_module
from consumers.messages.fold import MOST_SERIES, Fold, make_point
from consumers.messages.gathered import Gathering, GroupedMessages, Grouping
from consumers.messages.long import Fields
from consumers.messages.otlp import points_of, protobuf_parsers
from consumers.messages.series import Feature, Selectors, parse_feature, parse_features
from tests.consumers.otlp import as_json, message, recorded, resource

S = 10**9
HOUR = 3_600_000


def gather(
    grouping: Grouping,
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    parts: int = 1,
    times: Sequence[int] | None = None,
    places: int = 1000,
) -> dict[bytes, list[list[float]]]:
    """Rows by subject, of one round and one partition."""
    gatherer = Gathering(grouping, parts, places).begin((0, HOUR))

    n = len(values)
    gatherer.add(0, range(n), times or [0] * n, values, keys or [None] * n)
    found: dict[bytes, list[list[float]]] = {}
    for row, subject in zip(*gatherer.fold.rows(), strict=True):
        found.setdefault(subject, []).append(row.tolist())
    return found


def otlp(*features: str, **others: Any) -> Grouping:
    given: dict[str, Any] = {"subject": "host.name", "max_bytes": 1 << 20, **others}
    return Grouping("otlp", features, **given)


def one(feature: str, *points: dict[str, Any]) -> float:
    """The number of a feature over points of one host, in Protobuf and in JSON."""
    points = tuple({"name": "m", **point} for point in points)
    host = resource({"host.name": "a"}, *points)
    found = gather(otlp(feature), [message(host)])
    as_text = gather(Grouping("otlp-json", (feature,), 1 << 20, "host.name"), [as_json([host])])
    assert repr(found) == repr(as_text)
    return found[b"a"][0][0] if found else math.nan


# The language


@pytest.mark.parametrize(
    ("text", "at", "rule"),
    [
        ("", 1, "the name of a metric"),
        ('{a="b"}', 1, "the name of a metric"),
        ("median(x)", 1, "one of mean, max, min, last, sum, count, rate"),
        ("rate(x", 7, "closing parenthesis"),
        ("rate()", 6, "the name of a metric"),
        ('x{a=~"b"}', 5, "must be = or !="),
        ('x{a!~"b"}', 4, "must be = or !="),
        ("x{a=b}", 5, "text in double quotes"),
        ('x{a="b}', 5, "text in double quotes"),
        ('x{a="b" c="d"}', 9, "comma or a closing brace"),
        ('x{a="b"', 8, "comma or a closing brace"),
        ('x{a="b"} y', 10, "the end"),
        ("x y", 3, "the end"),
        ("rate(x))", 8, "the end"),
    ],
)
def test_an_error_says_where_and_why(text: str, at: int, rule: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse_feature(text)
    assert f"at character {at}:" in str(raised.value)
    assert rule in str(raised.value)


def test_features_that_mean_the_same_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="are the same"):
        parse_features(['x{a="1",b="2"}', ' x{ b = "2" , a = "1" }'])
    assert len(parse_features(['x{a="1"}', 'x{a!="1"}', "x", "mean(x)"])) == 4


def test_matchers() -> None:
    values = {"used": 1.0, "free": 2.0, "": 4.0}
    points = [
        {"value": value, "attributes": {"state": state} if state else {}}
        for state, value in values.items()
    ]
    assert one('sum(m{state="used"})', *points) == 1
    assert one('sum(m{state!="used"})', *points) == 6  # one that lacks it has the empty text
    assert one('sum(m{state=""})', *points) == 4
    assert one('sum(m{state!="used",state!=""})', *points) == 2
    assert one('sum(m{state="\\"used\\""})', {"value": 1, "attributes": {"state": '"used"'}}) == 1
    assert one('sum(m{on="true",port="80"})', {"value": 1, "attributes": {"on": True, "port": 80}})


# Kinds of points


def test_functions_of_levels() -> None:
    points = [{"time": t * S, "value": v} for t, v in ((1, 4.0), (3, 1), (2, 10.0))]
    numbers = {
        "m": 5,
        "mean(m)": 5,
        "max(m)": 10,
        "min(m)": 1,
        "last(m)": 1,
        "sum(m)": 15,
        "count(m)": 3,
    }
    assert {feature: one(feature, *points) for feature in numbers} == numbers


def test_several_series() -> None:
    points = [
        {"time": t * S, "value": 100 * cpu + t, "attributes": {"cpu": f"cpu{cpu}"}}
        for cpu, t in itertools.product(range(2), range(1, 4))
    ]
    assert one("m", *points) == 52
    assert one("last(m)", *points) == 53
    assert one("rate(m)", *points) == 2  # of both together
    # A series with more points has no more weight.
    assert one("m", *points, {"value": 102, "attributes": {"cpu": "cpu1"}}) == 52


def test_deltas() -> None:
    points = [
        {"kind": "delta", "start": t * S, "time": (t + 2) * S, "value": v}
        for t, v in ((1, 10.0), (3, 30.0))
    ]
    assert one("m", *points) == 40
    assert one("mean(m)", *points) == 20
    assert one("rate(m)", *points) == 10
    without_times = [{**point, "start": 0} for point in points]
    assert math.isnan(one("rate(m)", *without_times))


def test_counters_that_start_again() -> None:
    def at(t: int, value: float, start: int) -> dict[str, Any]:
        return {"kind": "counter", "time": t * S, "value": value, "start": start * S}

    points = [at(10, 100.0, 1), at(20, 150.0, 1), at(30, 20.0, 25), at(40, 60.0, 25)]
    for order in itertools.permutations(points):
        assert one("rate(m)", *order) == (50 + 60) / 30
    # Without start times, one that ends below its beginning has started again from zero.
    assert one("rate(m)", at(10, 100.0, 0), at(30, 40.0, 0)) == 2
    assert math.isnan(one("rate(m)", at(10, 100.0, 1)))
    assert math.isnan(one("rate(m)", at(10, 100.0, 1), at(10, 100.0, 1)))


@pytest.mark.parametrize("kind", ["histogram", "exponential_histogram"])
def test_histograms(kind: str) -> None:
    def at(t: int, total: float, count: int, **others: Any) -> dict[str, Any]:
        times = {"time": t * S, "start": S}
        return {"kind": kind, "value": (total, count), **times, **others}

    assert one("m", at(10, 12.0, 4)) == 3
    assert one("m", at(10, 12.0, 4), at(20, 32.0, 6)) == 10  # what came in between
    assert one("rate(m)", at(10, 12.0, 4), at(20, 32.0, 6)) == 0.2
    assert one("max(m)", at(10, 12.0, 4), at(20, 32.0, 4)) == 8
    assert one("m", at(10, 12.0, 4, delta=True), at(20, 32.0, 7, delta=True)) == 4
    assert math.isnan(one("m", at(10, 0.0, 0)))


def test_points_that_say_nothing() -> None:
    good = {"time": S, "value": 2.0}
    assert one("m", good, {"time": 2 * S, "value": 9.0, "flags": 1}) == 2
    assert one("m", good, {"time": 2 * S}) == 2
    assert one("m", good, {"time": 2 * S, "kind": "summary", "value": (6.0, 2)}) == 2
    for bad in (math.nan, math.inf, -math.inf, 1e308):
        assert one("m", good, {"time": 2 * S, "value": bad}) == 2


@settings(deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "value": st.sampled_from([1, 2.5, -3]),
                "time": st.sampled_from([0, 1, S]),
                "start": st.sampled_from([0, 1]),
                "flags": st.sampled_from([0, 0, 2]),
                "attributes": st.dictionaries(
                    st.sampled_from(["a", "b", "c"]),
                    st.sampled_from(["x", "y", "", 1, 1.0, True]),
                    max_size=3,
                ),
            }
        ),
        max_size=12,
    )
)
def test_what_is_remembered_of_attributes_changes_nothing(points: list[dict[str, Any]]) -> None:
    for feature in ('count(m{a="x"})', 'sum(m{b!="y",c="1"})', 'last(m{a!="true"})'):
        one(feature, *points)  # which compares with JSON, of which nothing is remembered


# A real collector


FEATURES = (
    'system.memory.usage{state="used"}',
    'system.cpu.utilization{state="user"}',
    'rate(system.network.io{direction="receive"})',
    "max(system.cpu.load_average.1m)",
)


def test_both_ways_of_partitioning_and_both_encodings_give_the_same_rows() -> None:
    whole = gather(otlp(*FEATURES), *recorded("whole_proto"))
    assert list(whole) == [b"web01"]
    assert np.isfinite(whole[b"web01"]).all()
    split, keys = recorded("split_proto")
    assert gather(otlp(*FEATURES), split, keys) == whole
    json_grouping = Grouping("otlp-json", FEATURES, 1 << 20, "host.name")
    assert gather(json_grouping, *recorded("whole_json")) == whole
    by_key = gather(otlp(*FEATURES, subject="@key"), split, keys)
    assert list(by_key.values()) == list(whole.values())


def test_rows_within_a_message() -> None:
    features = tuple(text for text in FEATURES if "rate" not in text)
    values, _ = recorded("whole_proto")
    rows = GroupedMessages(Grouping("otlp", features, 1 << 20), 2).decode(values)
    assert np.isfinite(rows[::2]).all()
    assert np.isnan(rows[1::2]).all()
    with pytest.raises(ConfigurationError, match="cumulativetodelta"):
        GroupedMessages(Grouping("otlp", FEATURES, 1 << 20), 2)


def test_groups_of_a_message() -> None:
    def host(name: str, service: str, value: float) -> Any:
        return resource(
            {"host.name": name, "service": service},
            {"name": "m", "time": 2, "value": value},
            {"name": "m", "time": 1, "value": -1},
        )

    sent = message(host("b", "x", 1), host("a", "x", 2), host("b", "y", 5), host("c", "x", 4))
    whole = GroupedMessages(Grouping("otlp", ("m",), 1 << 20), 5).decode([sent, None])
    assert np.nan_to_num(whole[:, 0]).tolist() == [1, 2, 5, 4, 0, 0, 0, 0, 0, 0]
    named = Grouping("otlp", ("m",), 1 << 20, group_by=("host.name",))
    assert GroupedMessages(named, 2).decode([sent])[:, 0].tolist() == [5, 2]


def test_a_bad_resource_has_its_own_row() -> None:
    def host(name: str, value: float) -> bytes:
        return resource({"host.name": name}, {"name": "m", "value": value}).SerializeToString()

    def joined(*hosts: bytes) -> bytes:
        return b"".join(b"\x0a" + bytes([len(host)]) + host for host in hosts)

    good, damaged = host("b", 2), host("a", 1).replace(b"\x0a\x01m", b"\x0a\x01\xff")
    codec = GroupedMessages(Grouping("otlp", ("m",), 1 << 20), 2)
    for bad in (damaged, b"\xff\xff", host("a", 1)[:-3]):
        rows = codec.decode([joined(bad, good)])[:, 0]
        assert math.isnan(rows[0]) and rows[1] == 2


# One metric per message


def lines(*objects: Any) -> list[bytes]:
    return [json.dumps(found).encode() for found in objects]


def test_one_metric_per_message() -> None:
    grouping = Grouping("long", ("cpu", 'rate(net{dir="in"})'), 1 << 20, "host")
    sent = [
        {"host": "a", "metric": "cpu", "value": 1.5, "timestamp": 10},
        {"host": "a", "metric": "net", "value": 100, "timestamp": 10, "dir": "in"},
        {"host": "a", "metric": "net", "value": 900, "timestamp": 10, "dir": "out"},
        {"host": "b", "metric": "cpu", "value": True, "timestamp": 10},
        {"host": "a", "metric": "net", "value": 300, "timestamp": 20, "dir": "in"},
        {"host": "a", "metric": "cpu", "value": "3.5", "timestamp": 20},
        {"host": "a", "metric": "cpu", "value": None},
        {"host": "a"},
        7,
        "x",
        None,
    ]
    expected = {b"a": [[1.5, 20.0]], b"b": [[1.0, math.nan]]}
    for values in (lines(*sent), lines(sent), lines({"metrics": sent}), lines(sent[:2], sent[2:])):
        assert repr(gather(grouping, values)) == repr(expected)
        framed = [b"\0\0\0\0\7" + value for value in values]
        assert repr(gather(grouping, framed)) == repr(expected)


def test_the_adapter_of_prometheus() -> None:
    sent = [
        {
            "name": "up",
            "timestamp": f"1970-01-01T00:00:{t}Z",
            "value": value,
            "labels": {"__name__": "up", "instance": "h:9100", "job": "node"},
        }
        for t, value in ((10, "98.5"), (20, "100.5"), (30, "NaN"), (40, "oops"))
    ]
    fields = Fields("name", "value", "timestamp", "labels", text=True)
    features = ('up{job="node"}', 'rate(up{instance="h:9100"})')
    grouping = Grouping("long", features, 1 << 20, "labels.instance", fields=fields)
    assert gather(grouping, lines(*sent)) == {b"h:9100": [[99.5, 0.2]]}
    numbers = Grouping("long", features, 1 << 20, "labels.instance", fields=Fields("name"))
    assert gather(numbers, lines(*sent)) == {}


def test_telegraf() -> None:
    sent = {
        "metrics": [
            {
                "name": "cpu",
                "tags": {"cpu": "cpu0", "host": "a"},
                "timestamp": 1,
                "fields": {"usage_idle": 90.0, "usage_user": 10, "state": "on"},
            },
            {"name": "mem", "tags": {"host": "a"}, "timestamp": 1, "fields": {"used_percent": 40}},
        ]
    }
    features = ('cpu.usage_idle{cpu="cpu0"}', "mem.used_percent")
    fields = Fields("name", "fields", "timestamp", "tags")
    grouping = Grouping("long", features, 1 << 20, "tags.host", fields=fields)
    assert gather(grouping, lines(sent)) == {b"a": [[90.0, 40.0]]}
    per_record = Grouping("long", features, 1 << 20, fields=fields)
    assert GroupedMessages(per_record, 1).decode(lines(sent)).tolist() == [[90.0, 40.0]]


def test_a_bad_element_is_in_the_row_of_its_message() -> None:
    good = b'{"metric": "m", "value": 2}'
    codec = GroupedMessages(Grouping("long", ("m",), 1 << 20), 1)
    for bad in (b'{"metric": "\xff", "value": 1}', b'{"metric": "m", "value": %b}' % (b"9" * 5000)):
        assert codec.decode([b"[%b,%b]" % (bad, good)]).tolist() == [[2.0]]
    named = GroupedMessages(Grouping("long", ("m",), 1 << 20, group_by=("host",)), 2)
    hosts = [b'{"host": "%b", "metric": "m", "value": 1}' % who for who in (b"\xff", b"b")]
    assert np.nan_to_num(named.decode([b"[%b,%b]" % tuple(hosts)])).tolist() == [[0.0], [1.0]]


# Parts of a round


def test_the_brokers_time_decides_the_part_and_nothing_else() -> None:
    values = [
        message(resource({"host.name": "a"}, {"name": "m", "time": 99, "value": v}))
        for v in (1, 2, 3)
    ]
    found = gather(otlp("m"), values, parts=4, times=[0, HOUR // 4 - 1, HOUR - 1])
    assert found == {b"a": [[1.5], [3.0]]}


def test_places_go_to_the_first_that_arrive() -> None:
    values = [message(resource({"host.name": name}, {"name": "m", "value": 1})) for name in "bacb"]
    assert gather(otlp("m"), values, places=2) == {b"b": [[1.0]], b"a": [[1.0]]}


# The fold: the same bits however it is cut

Sent = tuple[int, int, float, int, int, int]  # subject, time, value, series, start, function
FUNCTIONS = ("", "mean", "max", "min", "last", "sum", "count", "rate")

sent = st.tuples(
    st.integers(0, 2),
    st.integers(0, 5),
    st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.1, 0.2, 0.3, 1e16, -1e16]),
    st.integers(0, 40),
    st.integers(0, 1),
    st.integers(0, len(FUNCTIONS) - 1),
)


def folded(points: Sequence[tuple[int, Sent]]) -> Fold:
    fold = Fold(FUNCTIONS)
    for offset, (subject, time, value, series, start, function) in points:
        point = make_point(
            function, FUNCTIONS[function], "level", (("s", str(series)),), start, time, value
        )
        fold.add(b"%d" % subject, 0, [point], (0, offset, 0))
    return fold


def bits(fold: Fold) -> dict[bytes, bytes]:
    rows, subjects = fold.rows()
    return {who: row.tobytes() for who, row in zip(subjects, rows, strict=True)}


def check_cuts(points: list[Sent], cuts: Sequence[int], shuffled: Sequence[int]) -> None:
    numbered = list(enumerate(points))
    whole = bits(folded(numbered))
    edges = [0, *sorted({cut % (len(points) + 1) for cut in cuts}), len(points)]
    merged = Fold(FUNCTIONS)
    for start, end in itertools.pairwise(edges):
        merged.merge(folded(numbered[start:end]))
    assert bits(merged) == whole
    assert bits(folded([numbered[i] for i in shuffled])) == whole


@settings(deadline=None)
@given(st.data(), st.lists(sent, max_size=60), st.lists(st.integers(0, 60), max_size=4))
def test_the_same_bits_however_it_is_cut(
    data: st.DataObject, points: list[Sent], cuts: list[int]
) -> None:
    check_cuts(points, cuts, data.draw(st.permutations(range(len(points)))))


@settings(deadline=None)
@given(st.lists(sent, max_size=40), st.lists(sent, max_size=40))
def test_nobody_changes_anybody_elses_row(others: list[Sent], mine: list[Sent]) -> None:
    numbered = list(enumerate([*others, *mine]))
    alone = [(i, point) for i, point in numbered if point[0] != 1]
    with_me, without = bits(folded(numbered)), bits(folded(alone))
    assert {who: row for who, row in with_me.items() if who != b"1"} == without


@given(st.lists(st.floats(-1e30, 1e30), min_size=1))
def test_sums_and_means_are_exact(values: list[float]) -> None:
    fold = Fold(["sum", "mean"])
    for offset, value in enumerate(values):
        points = [make_point(i, f, "level", (), 0, 0, value) for i, f in enumerate(("sum", "mean"))]
        fold.add(b"a", 0, points, (0, offset, 0))
    exact = sum(Fraction(int(math.ldexp(value, 200))) for value in values) / 2**200
    assert fold.rows()[0].tolist() == [[float(exact), float(exact / len(values))]]


def test_the_first_series_in_a_fixed_order_count() -> None:
    names = [f"s{i:03}" for i in range(3 * MOST_SERIES)]
    for order in (names, names[::-1]):
        points = [{"value": int(name[1:]), "attributes": {"s": name}} for name in order]
        assert one("max(m)", *points) == MOST_SERIES - 1
        assert one("count(m)", *points) == MOST_SERIES


# Mutants


def _float_sums(states: Any, key: Any, state: Any) -> None:
    old = states.get(key)
    if old is not None and key[0] in ("mean", "sum"):
        added = math.ldexp(old[0], -200) + math.ldexp(state[0], -200)
        state, old = (int(math.ldexp(added, 200)), old[1] + state[1]), None
        states.pop(key)
    elif old is not None:
        _PUT(states, key, state)
        return
    _PUT(states, key, state)


def _first_to_arrive(states: Any, key: Any, state: Any) -> None:
    if key in states or len(states) < MOST_SERIES:
        _PUT(states, key, state)


def _last_to_arrive(states: Any, key: Any, state: Any) -> None:
    if key[0] == "last":
        states[key] = state
    else:
        _PUT(states, key, state)


_PUT = folding._put
MUTANTS: dict[str, Callable[..., None]] = {
    "float sums": _float_sums,
    "the first series to arrive": _first_to_arrive,
    "the last point to arrive": _last_to_arrive,
}


@contextmanager
def planted(mutant: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folding, "_put", MUTANTS[mutant])
        yield


def hard_case() -> tuple[list[Sent], list[int], list[int]]:
    rng = np.random.default_rng(5)
    points = [
        (0, int(t), float(v), int(s) if i % 2 else 0, 0, int(f))
        for i, (t, v, s, f) in enumerate(
            zip(
                rng.integers(0, 5, 3000),
                rng.standard_normal(3000) * 10.0 ** rng.integers(-8, 8, 3000),
                rng.integers(0, 41, 3000),
                rng.integers(0, len(FUNCTIONS), 3000),
                strict=True,
            )
        )
    ]
    return points, [500, 1500, 2200], rng.permutation(3000).tolist()


def test_a_hard_case_gives_the_same_bits() -> None:
    check_cuts(*hard_case())


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_fold_that_depends_on_the_cut_is_caught(mutant: str) -> None:
    with planted(mutant), pytest.raises(AssertionError):
        check_cuts(*hard_case())


# What one subject can do to others


@functools.cache
def wild(kind: str) -> list[bytes]:
    """Messages of one host that misbehaves, as elements of `resource_metrics`."""

    def of(*points: dict[str, Any]) -> bytes:
        given = ({"name": "m", **point} for point in points)
        return resource({"host.name": "wild"}, *given).SerializeToString()

    if kind == "20,000 points":  # of as many series, of which few are kept
        return [of(*({"value": i, "attributes": {"i": i}} for i in range(20_000)))]
    if kind == "wild times":
        return [
            of(
                *(
                    {"value": 1, "time": t, "start": s, "kind": k}
                    for t in (0, 1, 2**63, 2**64 - 1)
                    for s in (0, 5, 2**64 - 1)
                    for k in ("gauge", "delta", "counter")
                )
            )
        ]
    if kind == "resets":
        return [
            of(
                *(
                    {"value": i % 7, "time": i, "start": i, "kind": "counter"}
                    for i in range(1, 5000)
                )
            )
        ]
    if kind == "duplicated series":
        return [of(*[{"value": 3, "time": 1}] * 500)] * 5
    if kind == "missing series":
        return [of(), of({"value": 1, "name": "other"}), b""]
    if kind == "not numbers":
        return [of({"value": math.nan}, {"value": math.inf}, {"value": 1e308}, {"value": None})]
    if kind == "other types":
        return [
            of(
                {"value": (1.0, 2), "kind": "histogram"},
                {"value": 2, "kind": "delta"},
                {"value": (0.0, 0), "kind": "summary"},
                {"value": -(2**63)},
                {"value": (math.nan, 2**63), "kind": "exponential_histogram"},
            )
        ]
    if kind == "invalid UTF-8":
        return [
            of({"value": 1, "attributes": {"a": "zz"}}).replace(b"zz", b"\xff\xfe"),
            of({"value": 1}).replace(b"wild", b"wi\xffd"),
        ]
    return [of({"value": 1})[:-3], b"\xff" * 40, b"\x0a\xff\xff\xff\xff\x7f", bytes(range(256))]


KINDS = (
    "20,000 points",
    "wild times",
    "resets",
    "duplicated series",
    "missing series",
    "not numbers",
    "other types",
    "invalid UTF-8",
    "damage",
)


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared", [False, True], ids=["own messages", "shared messages"])
def test_one_host_changes_nothing_of_anybody_else(kind: str, shared: bool) -> None:
    features = ("m", "rate(m)", "max(m)", "last(m)", "count(m)", "sum(m)")
    others = [
        resource(
            {"host.name": name},
            {"name": "m", "value": i + 0.1, "time": i * S, "start": 1, "kind": "counter"},
            {"name": "m", "value": i + 0.7, "time": i * S, "attributes": {"b": i}},
        ).SerializeToString()
        for i in range(1, 30)
        for name in ("a", "b")
    ]
    each = [b"\x0a" + varint(len(host)) + host for host in others]
    bad = [b"\x0a" + varint(len(host)) + host for host in wild(kind)]
    alone = gather(otlp(*features, max_bytes=1 << 27), each)
    mixed = [*each[:20], *bad, *each[20:]]
    if shared:
        mixed = [b"".join(mixed)]
    found = gather(otlp(*features, max_bytes=1 << 27), mixed)
    found.pop(b"wild", None)
    assert repr({who: found[who] for who in alone}) == repr(alone)
    assert found.keys() == alone.keys()


def test_memory_of_a_subject_is_bounded() -> None:
    features = ("rate(m)", "mean(m)")
    gatherer = Gathering(otlp(*features, max_bytes=1 << 27)).begin((0, HOUR))

    gatherer.add(0, [0], [0], wild("resets"), [None])
    points = ({"name": "m", "value": 1, "attributes": {"long": f"{i}" * 9999}} for i in range(99))
    long = message(resource({"host.name": "wild"}, *points))
    gatherer.add(0, [1], [0], [long], [None])
    (states,) = gatherer.fold._of[b"wild"]
    assert all(len(of_feature) <= MOST_SERIES for of_feature in states.values())
    assert max(len(repr(key)) for of_feature in states.values() for key in of_feature) < 1000


def test_what_is_remembered_of_series_is_bounded() -> None:
    selectors = Selectors(parse_features(("m",)))
    kinds = ({"name": "m", "value": 1, "time": 1, "attributes": {"i": i}} for i in range(3000))
    long = {"name": "m", "value": 1, "time": 1, "attributes": {"i": "x" * 10_000}}
    parse, _ = protobuf_parsers()
    sent = parse(resource({}, *kinds, long).SerializeToString())
    assert len(points_of(sent, selectors, False)) == 3001
    assert 0 < len(selectors["m"]) <= 1024
    assert max(map(len, selectors["m"])) < 1000


# Damaged JSON


def test_the_work_of_a_message_does_not_grow_with_the_number_of_features(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A producer must not multiply the size of its message by the number of features."""
    work = 0

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any) -> Any:
            nonlocal work
            work += 1
            return call(*arguments)

        return counting

    monkeypatch.setattr(series_module, "hashlib", SimpleNamespace(sha256=counted(hashlib.sha256)))
    fields = {f"f{i}": i for i in range(200)}
    sent = {"metric": "m", "value": fields, "labels": {"host.name": "a" * 300, "b": "c"}}
    grouping = Grouping(
        "long",
        tuple(f"m.{name}" for name in fields),
        1 << 20,
        "labels.host.name",
        fields=Fields(labels="labels"),
    )
    value = json.dumps(sent).encode()
    [(_, points)] = grouping.groups()(value, None, 0)
    assert [point.value for point in points] == [*range(200)] and work == 1
    work = 0
    monkeypatch.setattr(Feature, "selects", counted(Feature.selects))
    features = [f'm{{cpu="{i}", state!="idle"}}' for i in range(200)]
    sent_points = [{"name": "m", "value": i, "attributes": {"cpu": str(i)}} for i in range(300)]
    host = resource({"host.name": "a"}, *sent_points)
    expected = {(i, i) for i in range(200)}
    for format, value in (("otlp", message(host)), ("otlp-json", as_json([host]))):
        work = 0
        made = Grouping(format, tuple(features), 1 << 20, "host.name")  # type: ignore[arg-type]
        [(_, points)] = made.groups()(value, None, 0)
        assert {(point.feature, point.value) for point in points} == expected and work == 200


def test_one_element_that_cannot_be_parsed_is_missing_alone() -> None:
    def host(name: bytes, value: bytes) -> bytes:
        return b'{"host": "%b", "metric": "m", "value": %b}' % (name, value)

    grouping = Grouping("long", ("m",), 1 << 20, "host")
    good = [host(b"a", b"1"), host(b"b", b"2")]
    for bad in (
        host(b"\xff", b"3"),
        host(b"c", b"[" * 5000 + b"]" * 5000),
        host(b"c", b"9" * 5000),
        b'{"x": "\\"]}"}',
        b"{" * 5000 + b"}" * 5000,
        b"3",
        b'"]["',
    ):
        for around in (b"[%b]", b'{"x": ["metrics", []], "metrics": [%b]}'):
            sent = around % b",".join([good[0], bad, good[1]])
            assert gather(grouping, [sent]) == {b"a": [[1.0]], b"b": [[2.0]]}, bad[:20]
    cut = b"[%b,%b" % (good[0], good[1][:-5])
    assert gather(grouping, [cut, b"", None, b"\0", b"[", b"]", b'"']) == {b"a": [[1.0]]}


@given(st.binary(max_size=200))
def test_anything_is_read_without_an_error(value: bytes) -> None:
    for format in ("otlp", "otlp-json", "long"):
        for subject in ("host", "@key", None):
            grouping = Grouping(format, ("m",), 150, subject)
            if subject is None:
                assert GroupedMessages(grouping, 3).decode([value]).shape == (3, 1)
            else:
                gather(grouping, [value], [value])

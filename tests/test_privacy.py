"""Neighbours under frozen noise: everything that must not change is equal, byte for byte.

Two streams differ in one slot and the noise is the same. Where the change cannot reach a private
output (both contents are nulls, both are clipped to the same point, or the batch is not full yet),
everything else that can be seen is compared: state, release, repr, pickle, logs, warnings, errors.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import os
import pickle
import struct
import warnings
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from stream_dppca import DPPCA, PaperDPPCA
from stream_dppca.basis import checked_basis, orthonormal
from stream_dppca.batch import Batch, Reading
from stream_dppca.calibration import gaussian_delta
from stream_dppca.errors import StateError
from stream_dppca.frames import rows_of
from stream_dppca.noise import Noise
from stream_dppca.paper.dppca import halves
from stream_dppca.paper.mean import MeanBudget, private_mean
from stream_dppca.slots import SlotBuffer
from tests.conftest import FrozenNoise, batch_of, moments_in

FEATURES = tuple("abcd")
D = len(FEATURES)
LOUD: dict[str, Any] = {"features": FEATURES, "epsilon": 20.0, "delta": 1e-3, "seed": 3}
KNOWN: dict[str, Any] = {"center": "none", "scales": None}
KINDS: dict[str, dict[str, Any]] = {
    "moment": {"batch_size": 64, **KNOWN},
    "one batch": {"batch_size": 64, "batches": 1, **KNOWN},
    "paper": {"batch_size": 240, "C1": 10.0},
    "paper in pairs": {"batch_size": 720, "C1": 14.0, "center": "pairs"},
    "learned": {"batch_size": 64},
    "learned scales": {"batch_size": 64, "center": "none"},
    "partial": {"batch_size": 64, "missing": "center"},
}
SECRET = 0.8414709848078965  # as text, as a double and in part
FEW = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def model(kind: str) -> DPPCA | PaperDPPCA:
    made = PaperDPPCA if kind.startswith("paper") else DPPCA
    return made(**LOUD, **KINDS[kind])


class Raises:
    """A record, or a value in one, that does whatever it can to be noticed."""

    def __float__(self) -> float:
        raise RuntimeError(f"secret {SECRET}")

    __getitem__ = __index__ = __len__ = __repr__ = __float__  # type: ignore[assignment]


BAD_VALUES: list[Any] = [
    math.nan,
    math.inf,
    -math.inf,
    1e19,
    -1e300,
    10**400,
    None,
    "text",
    str(SECRET),
    b"1",
    1j,
    [1.0],
    {},
    Decimal("NaN"),
    Decimal("1e400"),
    pd.NaT,
    pd.NA,
    object(),
    Raises(),
    np.datetime64("2024-01-01"),
    float,
]
BAD_RECORDS: list[Any] = [{}, None, 3.0, "abcd", [1.0] * D, Raises(), {"a": 1.0, "b": 2.0}]


def stream(n: int, seed: int = 0) -> list[dict[str, Any]]:
    # Every other record is small: differences of neighbours are alike, the paper's range exists.
    X = np.random.default_rng(seed).standard_normal((n, D)) * 0.01
    X += np.outer(np.arange(n) % 2, [1.0, 1.0, 0.5, 0.5])
    return [dict(zip(FEATURES, row, strict=True)) for row in X.tolist()]


def seen(kind: str, records: list[Any]) -> dict[str, Any]:
    """Everything that can be seen of an estimator that was fed these records."""
    m = model(kind)
    shown: dict[str, Any] = {"progress": []}
    handler = logging.Handler()
    logged: list[str] = []
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    root = logging.getLogger()
    root.addHandler(handler)
    level = root.level
    root.setLevel(logging.NOTSET)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            for record in records:
                try:
                    m.learn_one(record)
                except Exception as error:
                    logged.append(repr(error))
                shown["progress"].append((m.n_seen, m.n_batches, m.components.tobytes()))
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    release = m.last_release
    return shown | {
        "warnings": [str(w.message) for w in warned],
        "log": logged,
        "state": json.dumps(m.state()),
        "release": None if release is None else release.model_dump_json(),
        "repr": repr(m) + str(m) + repr(release),
        "pickles": [
            pickle.dumps(m, protocol) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)
        ],
        "deepcopy": pickle.dumps(copy.deepcopy(m)),
        "scores": m.transform_one(dict.fromkeys(FEATURES, 1.0)),
    }


# Neighbours


@st.composite
def equal_contents(draw: st.DrawFn, kind: str) -> tuple[Any, Any]:
    """Two contents of a slot that lead to equal private outputs."""
    good = {name: draw(st.floats(-2.0, 2.0)) for name in FEATURES}

    def bad() -> Any:
        if draw(st.booleans()):
            return draw(st.sampled_from(BAD_RECORDS))
        return good | {draw(st.sampled_from(FEATURES)): draw(st.sampled_from(BAD_VALUES))}

    if kind == "partial":  # one feature is missing, whatever stands in its place
        name = draw(st.sampled_from(FEATURES))
        missing = st.sampled_from([math.nan, math.inf, -math.inf, None, "text", Raises()])
        return good | {name: draw(missing)}, good | {name: draw(missing)}
    # Signs and sizes are in the mean, or counted: only nulls are alike, but for the paper's method.
    alike = ("bad", "sign", "clipped") if kind == "paper" else ("bad",)
    which = draw(st.sampled_from(alike))
    if which == "bad":
        return bad(), bad()
    if which == "sign":  # x x^T is the same
        return good, {name: -value for name, value in good.items()}
    assume(min(map(abs, good.values())) > 1e-3)
    powers = [2.0 ** draw(st.integers(24, 40)) for _ in range(2)]
    return tuple({name: value * p for name, value in good.items()} for p in powers)  # type: ignore[return-value]


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@FEW
def test_neighbours_with_equal_outputs_cannot_be_told_apart(kind: str, data: st.DataObject) -> None:
    size = KINDS[kind]["batch_size"]
    records = stream(2 * size + 5)
    slot = data.draw(st.integers(0, len(records) - 1))
    one, other = data.draw(equal_contents(kind))
    first, second = records.copy(), records.copy()
    first[slot], second[slot] = one, other
    shown = seen(kind, first)
    assert shown == seen(kind, second)
    assert shown["warnings"] == [] and shown["log"] == []
    assert '"status":"learned"' in shown["release"]  # something was released, and compared


@pytest.mark.parametrize("kind", KINDS)
@given(rest=st.lists(st.one_of(*map(st.just, BAD_RECORDS), st.floats(), st.text()), max_size=60))
@FEW
def test_a_partial_batch_is_not_seen(kind: str, rest: list[Any]) -> None:
    """Until a batch is full, only its number of slots is visible."""
    full = stream(KINDS[kind]["batch_size"])
    records = [dict.fromkeys(FEATURES, r) if isinstance(r, float | str) else r for r in rest]
    shown = seen(kind, full + records)
    assert shown == seen(kind, full + stream(len(rest), seed=1))
    assert shown["log"] == []


def test_a_batch_reads_its_own_slots_only() -> None:
    """A changed record moves no answer of any other batch, nor what was released before it."""
    size = KINDS["one batch"]["batch_size"]
    asked = {}
    for change in (0.0, 50.0):
        m = model("one batch")
        m._noise = FrozenNoise(scale=1.0)
        X = np.random.default_rng(1).standard_normal((3 * size, D))
        X[size + 7] += change
        m.learn_array(X)
        # Lengths, lengths, moments, scores; moments, scores; moments, scores.
        assert len(m._noise.asked) == 8
        # The last scores are those under a model that was released, too.
        asked[change] = [*m._noise.asked[:4], m._noise.asked[6]]
    assert all((a == b).all() for a, b in zip(*asked.values(), strict=True))


# Slots


@given(st.lists(st.integers(0, 99), max_size=40), st.sampled_from(BAD_VALUES))
@FEW
def test_a_bad_record_moves_no_other(bad: list[int], value: Any) -> None:
    """Dict by dict and as a frame: the other slots hold what they would have held."""
    good, spoiled = stream(100), stream(100)
    for slot in bad:
        spoiled[slot]["b"] = value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = []
        for records in (good, spoiled):
            buffer = SlotBuffer(FEATURES, 100, Reading(1e18))
            batches = [b for b in map(buffer.put_dict, records) if b is not None]
            assert len(batches) == 1 and buffer.fill == 0
            rows.append(batches[0].matrix())
    (X, _), (Y, null) = rows
    assert null.nonzero()[0].tolist() == sorted(set(bad))
    assert (X[~null] == Y[~null]).all()
    assert not Y[null].any()

    if not isinstance(value, complex):  # see test_one_complex_number_in_a_frame
        frame = pd.DataFrame({f: [r.get(f) for r in spoiled] for f in FEATURES}, dtype=object)
        (batch,) = SlotBuffer(FEATURES, 100, Reading(1e18)).put_frame(frame)
        Z, nulls = batch.matrix()
        assert (nulls == null).all() and (Z == Y).all()


@given(st.lists(st.integers(1, 200), min_size=1, max_size=12), st.data())
@FEW
def test_batches_end_where_they_end(blocks: list[int], data: st.DataObject) -> None:
    """Boundaries are counts of arrivals, whatever arrives and in whatever blocks."""
    buffer, arrived, full = SlotBuffer(FEATURES, 64, Reading(1e18)), 0, 0
    for block in blocks:
        X = np.ones((block, D))
        X[data.draw(st.integers(0, block - 1))] = data.draw(st.sampled_from((np.nan, 1e200, 1.0)))
        full += sum(1 for _ in buffer.put_rows(X))
        arrived += block
        assert (full, buffer.fill) == divmod(arrived, 64)


# Secrets


def traces(value: float) -> list[bytes]:
    digits = repr(abs(value)).replace(".", "").lstrip("0")
    return [digits[:9].encode(), struct.pack("<d", value), struct.pack(">d", value)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("extra", [0, 5])
def test_a_secret_is_nowhere(kind: str, extra: int) -> None:
    """A value is planted in a full batch and in the partial one: nothing that is shown holds it."""
    size = KINDS[kind]["batch_size"]
    records = stream(size) + stream(size + extra, seed=2)
    for slot in (3, size + 3, 2 * size + 1):
        if slot < len(records):
            records[slot] = dict.fromkeys(FEATURES, SECRET)
    shown = seen(kind, records)
    everything = b"".join(
        [
            *shown["pickles"],
            shown["deepcopy"],
            shown["state"].encode(),
            shown["repr"].encode(),
            shown["release"].encode(),
            repr(shown["scores"]).encode(),
            *(components for _, _, components in shown["progress"]),
        ]
    )
    for value in (SECRET, SECRET**2, SECRET * 0.5**0.5):
        for trace in traces(value):
            assert trace not in everything


def test_errors_quote_no_data() -> None:
    m = model("moment")
    for X in ([[SECRET]], np.full((2, D + 1), SECRET), [[str(SECRET)] * D], [[SECRET] * D, [1.0]]):
        with pytest.raises(ValueError) as caught:
            m.learn_array(X)
        assert "84147" not in str(caught.value)
    state = m.state()
    state["method"] = {"W": SECRET}
    with pytest.raises(StateError) as refused:
        DPPCA.from_state(state)
    assert "84147" not in str(refused.value)


def test_what_a_seed_has_touched_is_never_private() -> None:
    m = model("moment")
    m.learn_array(np.random.default_rng(0).standard_normal((64, D)))
    state = json.loads(json.dumps(m.state()))
    for twin in (
        DPPCA.from_state(state),
        copy.deepcopy(m),
        pickle.loads(pickle.dumps(m)),
        m.clone(),
    ):
        assert twin.privacy.private is False
    with pytest.raises(StateError, match="seed"):
        DPPCA.from_state(state, seed=None)


# Sensitivities, as computed in float64

COORDINATE = st.one_of(
    st.floats(-3.0, 3.0), st.sampled_from([0.0, 1e-160, 1e9, -1e9, 1e17, -1e17, 1e-9, 1.0])
)


@st.composite
def neighbours(draw: st.DrawFn) -> tuple[Batch, Batch]:
    n, d = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    rows = st.lists(COORDINATE, min_size=d, max_size=d)
    X = np.array(draw(st.lists(rows, min_size=n, max_size=n)))
    Y = X.copy()
    Y[draw(st.integers(0, n - 1))] = draw(st.one_of(rows, st.just([np.nan] * d)))
    return batch_of(X), batch_of(Y)


def exact_distance(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    return math.sqrt(math.fsum(((a - b) ** 2).ravel()))


@given(neighbours(), st.integers(-128, 127))
@settings(max_examples=300, deadline=None)
def test_moments_move_within_their_sensitivity(pair: tuple[Batch, Batch], j: int) -> None:
    moments = moments_in(pair[0].matrix()[0].shape[1], 2.0**j)
    a, b = (batch.total(moments) for batch in pair)
    assert exact_distance(a, b) <= moments.sensitivity(len(pair[0]))


# Past findings of the audit


@pytest.mark.parametrize(
    "epsilon, delta, d, slots", [(1.0, 1e-6, 50, 50_000), (0.001, 1e-6, 4, 20_000)]
)
def test_lone_bins_stay_within_delta(epsilon: float, delta: float, d: int, slots: int) -> None:
    """The threshold of Algorithm 5 must be for the sd of the noise that is drawn."""
    from scipy.special import ndtr

    budget = MeanBudget.split(epsilon, delta)
    drawn: list[float] = []

    class Ask(FrozenNoise):
        @staticmethod
        def gaussian_sd(*, sensitivity: float, mu: float) -> float:
            drawn.append(Noise.gaussian_sd(sensitivity=sensitivity, mu=mu))
            return drawn[-1]

    private_mean(
        np.zeros((slots, d)),
        np.zeros(slots, dtype=bool),
        eigenvalue=1.0,
        budget=budget,
        noise=Ask(),
    )
    tail = float(ndtr((1 - budget.threshold(d)) / drawn[0]))
    lone = -math.expm1(d * math.log1p(-tail))
    mu = math.hypot(budget.mu_histogram, budget.mu_mean)
    assert lone + gaussian_delta(epsilon + math.log1p(-lone), mu) <= delta


def test_data_at_the_floor_of_float64_is_skipped() -> None:
    X = np.random.default_rng(0).standard_normal((2048, D)) * 1e-81
    m = PaperDPPCA(**LOUD | {"epsilon": 2.0, "delta": 0.02}, batch_size=2048)
    m.learn_array(X)
    assert m.last_release is not None and m.last_release.reason


def test_one_complex_number_in_a_frame() -> None:
    """pandas makes the whole column complex; only the record that is may turn null."""
    rows = rows_of(pd.DataFrame({"a": [1.0, 1j]}), ("a",))
    assert rows[0, 0] == 1.0 and np.isnan(rows[1, 0])


@pytest.mark.parametrize("value", [np.complex128(3 + 4j), np.complex64(1j)])
def test_no_value_raises_a_warning(value: Any) -> None:
    with warnings.catch_warnings(record=True) as warned:
        model("moment").learn_one(dict.fromkeys(FEATURES, value))
    assert warned == []


def test_no_array_raises_a_warning() -> None:
    if np.finfo(np.longdouble).max <= np.finfo(np.float64).max:
        pytest.skip("long double is double here")
    m = model("moment")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        m.learn_array(np.full((1, D), np.longdouble("1e4000")))
    assert warned == []


def test_no_repr_shows_records() -> None:
    batch = batch_of(np.full((2, 3), SECRET))
    shown = [batch, *batch._blocks(), *halves(*batch.matrix())]
    assert "84147" not in "".join(map(repr, shown))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_the_child_of_a_fork_forgets() -> None:
    m = model("moment")
    X = np.random.default_rng(3).standard_normal((2 * m.batch_size + 10, len(m.features)))
    m.learn_array(X)
    sums: Any = m._method
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fork of a process with threads
        child = os.fork()
    if child == 0:
        try:
            os.write(write, f"{m.n_seen} {len(sums.mechanism._sums)}".encode())
        finally:
            os._exit(0)  # the tests are the parent's
    os.waitpid(child, 0)
    os.close(write)
    assert os.read(read, 100).decode() == f"{2 * m.batch_size} 0"
    assert m.n_seen == 2 * m.batch_size + 10 and len(sums.mechanism._sums) == 2


@pytest.mark.parametrize("form", ["moment", "paper"])
@pytest.mark.parametrize("scale", [10.0, math.nan])
def test_a_state_with_another_basis_is_refused(form: str, scale: float) -> None:
    """Releases promise orthonormal columns."""
    m = model(form)
    state, kind = m.state(), type(m)
    kind.from_state(state)
    broken = copy.deepcopy(state)
    broken["method"]["W"][0][0] *= scale
    broken["method"]["W"][1][0] += 1.0
    with pytest.raises(StateError):
        kind.from_state(broken)
    with pytest.raises(StateError):
        kind.from_state(state | {"n_batches": -3})


@pytest.mark.parametrize("form", ["moment", "paper"])
def test_a_basis_that_is_slightly_off_is_refused(form: str) -> None:
    m = model(form)
    state = m.state()
    W = np.array(state["method"]["W"])
    state["method"]["W"] = (W * (1 + 4e-10)).tolist()  # W^T W is off the identity by 1e-9
    with pytest.raises(StateError):
        type(m).from_state(state)


@pytest.mark.parametrize("d, k", [(1, 1), (3, 2), (5, 5), (40, 39), (60, 60), (300, 4)])
def test_an_honest_basis_is_taken_as_it_is(d: int, k: int) -> None:
    rng = np.random.default_rng(d)
    for _ in range(10):
        U, _, Vt = np.linalg.svd(rng.standard_normal((d, k)), full_matrices=False)
        for W in (orthonormal(U * np.logspace(0, -9, k)), U @ Vt, orthonormal(U @ Vt[:, ::-1])):
            assert np.array_equal(checked_basis(W.tolist(), like=W), W)


def test_the_statement_is_that_of_the_mechanism() -> None:
    m = model("moment")
    claimed = m.privacy.epsilon
    m.epsilon = 0.001
    assert m.privacy.epsilon == claimed

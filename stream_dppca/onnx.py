"""`Projector.to_onnx`: the scores as a graph that any runtime of ONNX computes, in any language.

The graph has the formulas of `scores` and the rules of `Projector`, in double precision. A record
that lacks a feature with spread has no scores.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper

from . import scores
from .errors import DPPCAError

if TYPE_CHECKING:
    from .projector import Projector

#: Versions of the operators and of the format: old enough for runtimes since 2021.
_OPSET, _IR = 13, 8


class _Graph:
    """Nodes of a graph, one call each."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def __call__(self, operator: str, *inputs: Any, output: str = "", **attributes: Any) -> str:
        output = output or f"{operator}{len(self.nodes)}"
        names = [x if isinstance(x, str) else self._constant(x) for x in inputs]
        self.nodes.append(helper.make_node(operator, names, [output], **attributes))
        return output

    def _constant(self, value: Any) -> str:
        name = f"constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name


def graph_of(of: Projector) -> bytes:
    """The serialised model: rows n x d in; `scores` n x k, `spe` n and `t2` n out."""
    d, k = of.W.shape
    if k == 0:
        raise DPPCAError("there is nothing to export yet: nothing has been learned")
    g, axis = _Graph(), np.array([1])
    spread = of.deviation > 0
    present = g("Not", g("Or", g("IsNaN", "X"), g("IsInf", "X")))
    z = g("Div", g("Sub", "X", of.center), of.scale)
    size = g("Min", g("Abs", z), np.float64(scores.LARGEST))
    ratio = g("Max", g("Div", size, of.clamp), np.float64(1))
    far = g("Mul", g("Add", g("Log", ratio), np.float64(1)), of.clamp)
    grown = g("Mul", g("Sign", z), g("Where", g("Greater", size, of.clamp), far, size))
    r = np.where(spread, of.deviation, 1.0)
    usable = g("And", present, g("And", g("Not", g("IsNaN", z)), spread & np.isfinite(r)))
    U = g("Where", usable, g("Div", g("Sub", grown, of.mean), r), np.float64(0))
    read = g("Cast", g("Or", present, ~spread), to=TensorProto.DOUBLE)
    complete = g("ReduceMin", read, axes=axis.tolist())
    U = g("Where", g("Less", complete, np.float64(1)), np.float64(np.nan), U)
    along = g("MatMul", U, of.W, output="scores")
    rest = g("Sub", U, g("MatMul", along, np.ascontiguousarray(of.W.T)))
    with np.errstate(all="ignore"):  # as in `Projector.spe` and `Projector.t2`
        weight = np.where(of.variance <= 0, 0.0, 1 / of.variance)
    weight = np.where((of.variance > 0).any(), weight, np.nan)
    unit = 1.0 if k < np.count_nonzero(spread) else np.nan
    for name, squares in (
        ("spe", g("Mul", g("Mul", rest, rest), np.float64(unit))),
        ("t2", g("Mul", g("Mul", along, along), weight)),
    ):
        g("ReduceSum", squares, axis, output=name, keepdims=0)

    def value(name: str, *shape: Any) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.DOUBLE, shape)

    outputs = [value("scores", "n", k), value("spe", "n"), value("t2", "n")]
    graph = helper.make_graph(g.nodes, "scores", [value("X", "n", d)], outputs, g.constants)
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR,
        producer_name="stream-dppca",
        doc_string="Scores of raw records. They are about these records, and not private.",
    )
    limits = {name: [limit.model_dump() for limit in found] for name, found in of.limits.items()}
    public = {"features": list(map(str, of.features)), "limits": limits}
    helper.set_model_props(model, {name: json.dumps(said) for name, said in public.items()})
    checker.check_model(model)
    return bytes(model.SerializeToString())

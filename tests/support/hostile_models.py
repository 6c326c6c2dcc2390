"""ONNX models that nobody wrote with good intentions, or that `tests.support.fuzz` damages.

`seeds` have a bit of everything: bodies, functions, external data. `of_operator` uses one operator in ways that no
checker foresees: operands without a type, of odd kinds and dims, attributes left out, out of range and of other types.
"""

from __future__ import annotations

import random
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, defs, helper, numpy_helper

from tests.hipdnn_backend.offload.frontend.test_growth import MODELS
from tests.hipdnn_backend.offload.frontend.test_nesting import functions
from tests.support.onnx_models import bert_layer, mlp, small_cnn

__all__ = ["of_operator", "operators", "seeds"]

_GROWING = ("doubled input", "flattened by propagated dims", "doubled in a branch", "many dims", "a range")


def seeds() -> list[bytes]:
    """All of them; the external data is in ``weights.bin``."""
    made = [small_cnn(size=8), bert_layer(hidden=8, heads=2, sequence=2), mlp(), functions(5, 2), _bodies(), _stored()]
    return [model.SerializeToString() for model in made] + [MODELS[name] for name in _GROWING]


def _value(name: str, kind: int, dims: list[Any] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, dims)


def _bodies() -> onnx.ModelProto:
    """A Loop, a Scan and an If, one in another, with values that they take from outside."""
    flag, number = _value("on", TensorProto.BOOL, []), _value("i", TensorProto.INT64, [])
    state, kept = _value("s", TensorProto.FLOAT, [2]), _value("k", TensorProto.FLOAT, [2])
    then = helper.make_graph(
        [helper.make_node("Add", ["s", "x"], ["k"], "add")], "then", [], [_value("k", TensorProto.FLOAT, [2])]
    )
    other = helper.make_graph([helper.make_node("Neg", ["s"], ["n"], "neg")], "else", [], [_value("n", 1, [2])])
    body = helper.make_graph(
        [
            helper.make_node("If", ["on"], ["k"], "if", then_branch=then, else_branch=other),
            helper.make_node("Identity", ["on"], ["go"], "id"),
            helper.make_node("Relu", ["k"], ["r"], "relu"),
        ],
        "body", [number, flag, state], [_value("go", TensorProto.BOOL, []), kept, _value("r", 1, [2])],
    )  # fmt: skip
    scanned = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["c"], "sum"), helper.make_node("Identity", ["c"], ["d"], "out")],
        "scanned", [_value("a", 1, []), _value("b", 1, [])], [_value("c", 1, []), _value("d", 1, [])],
    )  # fmt: skip
    nodes = [
        helper.make_node("Loop", ["count", "yes", "x"], ["end", "each"], "loop", body=body),
        helper.make_node("Scan", ["zero", "end"], ["total", "y"], "scan", body=scanned, num_scan_inputs=1),
        helper.make_node("SequenceConstruct", ["end", "x"], ["list"], "list"),
        helper.make_node("ConcatFromSequence", ["list"], ["z"], "joined", axis=0),
        helper.make_node("Optional", ["x"], ["maybe"], "maybe"),
        helper.make_node("OptionalGetElement", ["maybe"], ["w"], "got"),
    ]
    constants = [
        numpy_helper.from_array(np.asarray(value), name)
        for name, value in (("count", np.int64(3)), ("yes", np.bool_(True)), ("zero", np.float32(0)))
    ]
    outputs = [_value("y", 1, [2]), _value("z", 1, [4]), _value("each", 1, [3, 2]), _value("w", 1, [2])]
    graph = helper.make_graph(nodes, "bodies", [_value("x", 1, [2])], outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def _stored() -> onnx.ModelProto:
    """Constants of each form: raw, in fields, sparse, 4-bit, in attributes, and in a file beside the model."""
    outside = TensorProto(name="outside", data_type=TensorProto.FLOAT, dims=[2, 3])
    outside.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "weights.bin"), ("offset", "64"), ("length", "24")):
        outside.external_data.add(key=key, value=value)
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(np.asarray([1.5, -2], np.float32), "sparse"),
        numpy_helper.from_array(np.asarray([1, 5]), "indices"),
        [2, 3],
    )
    constants = [
        outside,
        helper.make_tensor("fields", TensorProto.FLOAT, [2, 3], range(6)),
        helper.make_tensor("half", TensorProto.FLOAT16, [2, 3], range(6)),
        helper.make_tensor("packed", TensorProto.INT4, [2, 3], range(6)),
        numpy_helper.from_array(np.asarray(["a", "b"], object), "words"),
        numpy_helper.from_array(np.asarray(0.5, np.float32), "scale"),
        numpy_helper.from_array(np.asarray([6, -1]), "dims"),
    ]
    nodes = [
        helper.make_node("Add", ["x", "outside"], ["a"], "a"),
        helper.make_node("Mul", ["a", "fields"], ["b"], "b"),
        helper.make_node("Sub", ["b", "sparse"], ["c"], "c"),
        helper.make_node("Cast", ["half"], ["h"], "h", to=1),
        helper.make_node("DequantizeLinear", ["packed", "scale"], ["q"], "q"),
        helper.make_node("Constant", [], ["k"], "k", value=helper.make_tensor("t", 1, [3], [1, 2, 3])),
        helper.make_node("Constant", [], ["s"], "s", sparse_value=sparse),
        helper.make_node("ConstantOfShape", ["dims"], ["f"], "f", value=helper.make_tensor("v", 1, [1], [2])),
        helper.make_node("Sum", ["c", "h", "q", "k", "s"], ["d"], "d"),
        helper.make_node("Reshape", ["d", "dims"], ["y"], "y"),
    ]
    graph = helper.make_graph(nodes, "stored", [_value("x", 1, ["n", 3])], [_value("y", 1, None)], constants)
    graph.sparse_initializer.append(sparse)
    graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


# ---- one operator

_INTEGERS: Final = (-(2**63), -5, -1, 0, 1, 2, 3, 7, 100, 2**31, 2**62, 2**63 - 1)
_DIMS: Final = ([], [2], [2, 3], [1, 3, 4, 5], [0], [3, 3, 3, 3, 3], [1, 1, 2])
_ELEMENTS: Final = (1, 1, 1, 7, 6, 9, 10, 11, 2, 8)
_VALUES: Final = tuple(
    np.asarray(value, dtype)
    for value, dtype in (
        ([2, 3], np.int64), ([], np.int64), (1, np.int64), ([1, 2], np.float32), ([[0, 0], [0, 0]], np.int64),
        ([-1, 2**62], np.int64), ([True], np.bool_), ([5], np.int32), ([-(2**63)], np.int64), ([0, 0, 1, 1], np.int64),
    )
)  # fmt: skip


def operators(*, old: bool) -> list[Any]:
    """The operators of ONNX; the old ones are in all their versions."""
    known = defs.get_all_schemas_with_history() if old else defs.get_all_schemas()
    kept = (schema for schema in known if schema.domain in ("", "ai.onnx.ml"))
    return sorted(kept, key=lambda schema: (schema.domain, schema.name, schema.since_version))


def of_operator(schema: Any, seed: int) -> bytes:
    """A model whose last node is of an operator."""
    source = random.Random(f"{schema.domain} {schema.name} {schema.since_version} {seed}")
    maker = _Maker(source)
    count = source.randint(schema.min_input, min(schema.max_input, schema.min_input + 4))
    read = [maker.operand(f"x{i}") if source.random() < 0.95 else "" for i in range(count)]
    results = source.randint(max(schema.min_output, 1), max(1, min(schema.max_output, schema.min_output + 2)))
    made = [f"y{i}" if not i or source.random() < 0.9 else "" for i in range(results)]
    node = onnx.NodeProto(op_type=schema.name, domain=schema.domain, name="last", input=read, output=made)
    for attribute in schema.attributes.values():
        if source.random() < (0.95 if attribute.required else 0.4):
            node.attribute.append(_attribute(source, attribute))
    outputs = [_value(name, source.choice((1, 1, 7, 8, 9)), None) for name in made if name]
    graph = helper.make_graph([*maker.nodes, node], "odd", maker.inputs, outputs, maker.constants)
    fitting = [version for version in (7, 9, 11, 13, 15, 18, 20, 22) if version >= schema.since_version]
    own = schema.since_version if schema.domain or not fitting else source.choice(fitting)
    versions = {"odd": 1, "": 22, schema.domain: own}
    imports = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()


class _Maker:
    """Makes operands, and what makes them."""

    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.constants: list[onnx.TensorProto] = []

    def operand(self, name: str) -> str:
        """A tensor, something that is none, or a value of which nothing is known."""
        chance, inner = self.source.random(), f"{name}_inner"
        if chance < 0.65:
            return self._tensor(name)
        if chance < 0.8:
            self.nodes.append(helper.make_node("Odd", [self._tensor(inner)], [name], domain="odd"))
        elif chance < 0.9:
            kind = self.source.choice(("SequenceConstruct", "Optional"))
            self.nodes.append(helper.make_node(kind, [self._tensor(inner)], [name]))
        elif chance < 0.97:
            operands = [self._tensor(inner), self._tensor(f"{name}_dims")]
            self.nodes.append(helper.make_node("Reshape", operands, [name]))
        else:
            element = self.source.choice((1, 7, 8, 9, 99))
            self.nodes.append(helper.make_node("Cast", [self._tensor(inner)], [name], to=element))
        return name

    def _tensor(self, name: str) -> str:
        if self.source.random() < 0.2:
            self.constants.append(numpy_helper.from_array(self.source.choice(_VALUES), name))
        else:
            self.inputs.append(_value(name, self.source.choice(_ELEMENTS), self.source.choice(_DIMS)))
        return name


def _attribute(source: random.Random, given: Any) -> onnx.AttributeProto:
    """A value of the right type, mostly."""
    kind = int(given.type) if source.random() < 0.9 else source.choice((1, 2, 3, 4, 6, 7, 8))
    made = onnx.AttributeProto(name=given.name, type=kind)  # type: ignore[arg-type]  # a number is one
    if kind == onnx.AttributeProto.FLOAT:
        made.f = source.choice((0, 1, -1, float("nan"), 1e30))
    elif kind == onnx.AttributeProto.INT:
        made.i = source.choice(_INTEGERS)
    elif kind == onnx.AttributeProto.STRING:
        made.s = source.choice((b"", b"SAME_UPPER", b"linear", b"ij,jk->ik", b"...i,->", b"VALID", b"x" * 300, b"\xff"))
    elif kind == onnx.AttributeProto.TENSOR:
        made.t.CopyFrom(source.choice((
            numpy_helper.from_array(source.choice(_VALUES)), TensorProto(data_type=7, dims=[3]), TensorProto(),
            TensorProto(dims=[2**40], data_type=1),
        )))  # fmt: skip
    elif kind == onnx.AttributeProto.GRAPH:
        made.g.CopyFrom(_body(source))
    elif kind == onnx.AttributeProto.FLOATS:
        made.floats.extend(source.choices((0.0, 1.0, -1.0), k=source.randrange(5)))
    elif kind == onnx.AttributeProto.INTS:
        made.ints.extend(source.choices(_INTEGERS, k=source.randrange(6)))
    elif kind == onnx.AttributeProto.STRINGS:
        made.strings.extend(source.choices((b"", b"a", b"relu"), k=source.randrange(4)))
    return made


def _body(source: random.Random) -> onnx.GraphProto:
    def values(names: list[str]) -> list[onnx.ValueInfoProto]:
        return [_value(name, source.choice(_ELEMENTS), source.choice((*_DIMS, None))) for name in names]

    inputs = [f"b{i}" for i in range(source.randrange(4))]
    known = [*inputs, "x0", "x1"]
    nodes = [
        helper.make_node(source.choice(("Identity", "Relu", "Shape")), [source.choice(known)], [f"c{i}"], f"c{i}")
        for i in range(source.randrange(3))
    ]
    outputs = source.choices([*known, *(node.output[0] for node in nodes)], k=source.randrange(4))
    return helper.make_graph(nodes, "body", values(inputs), values(outputs))

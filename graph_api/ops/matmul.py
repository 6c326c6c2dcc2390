"""Matrix product over the last two dims, with batch dims of which one divides the other.

Source of the semantics: hipDNN's and cuDNN's front ends; with equal batch dims it is ``torch.matmul``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fusilli_ground.late_numpy import np
from graph_api.builder import GraphBuilder
from graph_api.dtypes import DataType
from graph_api.layout import packed_strides
from graph_api.node import Array, Arrays, Attributes, Node, register_op
from graph_api.tensor import TensorAttr

__all__ = ["MatmulAttributes", "MatmulBuilder", "MatmulNode"]

Dims = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class MatmulAttributes(Attributes):
    """A matrix product has no attributes: transposition is expressed by strides, an epilogue by further nodes."""


@register_op
class MatmulNode(Node):
    """c[..., m, n] = sum over k of a[..., m, k] * b[..., k, n].

    Shapes:  a [batch..., M, K], b [batch..., K, N] -> c [batch..., M, N], equal ranks >= 2. Of two batch dims the
             smaller must divide the larger, which is the result's; the smaller operand repeats each matrix
             (larger/smaller) times in a row: index i of the result reads index i // (larger/smaller). That is how
             grouped queries share a head.
    Dtypes:  any two; they are multiplied in the wider, and accumulated in the compute type
    Layout:  a and b with any strides; c is row-major unless its strides are set
    Raises:  GraphError if ranks, K or batch dims do not fit, or the compute type is an integer and an operand is not
    Source:  hipDNN Matmul
    """

    op = "matmul"
    attributes_type = MatmulAttributes
    attributes: MatmulAttributes
    input_ports = ("a", "b")
    output_ports = ("c",)

    def validate(self) -> None:
        a, b = self.inputs["a"].dims, self.inputs["b"].dims
        if len(a) != len(b) or len(a) < 2:
            raise self.fail(
                f"a {a} and b {b} must have the same rank, at least 2; give the smaller one leading dims of 1"
            )
        if a[-1] != b[-2]:
            raise self.fail(
                f"a {a} has K={a[-1]}, b {b} has K={b[-2]}; is one of them transposed? "
                "Transposition is expressed by strides"
            )
        for axis, (left, right) in enumerate(zip(a[:-2], b[:-2], strict=True)):
            if left % right and right % left:
                raise self.fail(f"batch dim {axis} of a {a} and b {b}: neither of {left} and {right} divides the other")
        for port, tensor in self.inputs.items():
            if tensor.data_type.is_float and not self.compute.is_float:
                raise self.fail(
                    f"{port} is {tensor.data_type.name} and compute_data_type {self.compute.name}; use FLOAT or DOUBLE"
                )

    def infer(self) -> None:
        a, b = self.inputs["a"].dims, self.inputs["b"].dims
        batch = tuple(max(pair) for pair in zip(a[:-2], b[:-2], strict=True))
        dims = (*batch, a[-2], b[-1])
        self.outputs["c"].resolve(strides=packed_strides(dims))
        self.infer_output("c", dims, self.inputs["a"])

    def flops(self) -> int:
        return 2 * self.outputs["c"].volume * self.inputs["a"].dims[-1]

    def reference(self, inputs: Arrays) -> dict[str, Array]:
        return {"c": self._product(inputs["a"], inputs["b"])}

    def error(self, inputs: Arrays, errors: Arrays, outputs: Arrays) -> dict[str, Array]:
        a, b = np.abs(inputs["a"]), np.abs(inputs["b"])
        a_error = np.broadcast_to(errors["a"], a.shape) + self._conversion_eps("a") * a
        b_error = np.broadcast_to(errors["b"], b.shape) + self._conversion_eps("b") * b
        bound = self._product(self.gamma(a.shape[-1]) * a + a_error, b)
        return {"c": bound + self._product(a + a_error, b_error) if np.any(b_error) else bound}

    def _product(self, a: Array, b: Array) -> Array:
        return np.asarray(np.matmul(self._repeated(a), self._repeated(b)), np.float64)

    def _repeated(self, operand: Array) -> Array:
        """The operand with the batch dims of the result."""
        for axis, size in enumerate(self.outputs["c"].dims[:-2]):
            operand = np.repeat(operand, size // operand.shape[axis], axis)
        return operand

    def _conversion_eps(self, port: str) -> float:
        """What converting an operand to the compute type loses."""
        dtype = self.inputs[port].data_type
        exact = not dtype.is_float and dtype.bits <= 8
        return 0.5 * self.compute.eps if dtype.eps < self.compute.eps and not exact else 0.0


class MatmulBuilder(GraphBuilder):
    """Builder method of the matrix product."""

    def matmul(
        self, a: TensorAttr, b: TensorAttr, *, compute_data_type: DataType | None = None, name: str | None = None
    ) -> TensorAttr:
        """Adds a matrix product; see :class:`MatmulNode`.

        Args:
            a: [batch..., M, K]; transposed operands are expressed by strides.
            b: [batch..., K, N].

        Returns:
            c [batch..., M, N], virtual until ``set_output(True)``.
        """
        node = self.add_node(MatmulNode, {"a": a, "b": b}, name=name, compute_data_type=compute_data_type)
        return node.outputs["c"]


def batch_factors(a: Dims, b: Dims) -> list[tuple[int, int, int]]:
    """Per batch dim (shared, a's own, b's own): the result's dim is their product, in this order.

    a has the dim shared * own(a), b has shared * own(b), and at most one of the two is larger than 1.
    """
    return [
        (shared := math.gcd(left, right), left // shared, right // shared) for left, right in zip(a, b, strict=True)
    ]

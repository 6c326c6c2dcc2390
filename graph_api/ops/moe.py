"""Mixture of experts: products of rows with the matrix of the expert that each is routed to, and their gradient.

Source of the semantics: hipDNN's CPU references of both operations, cuDNN's front end. These raise where the routing
names rows or experts that are not there; here every routing has a meaning, and none reads or writes outside a tensor.
"""

# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fusilli_ground.late_numpy import np
from graph_api.builder import GraphBuilder
from graph_api.dtypes import DataType
from graph_api.errors import GraphError
from graph_api.layout import packed_strides
from graph_api.node import Array, Arrays, Attributes, Node, register_op
from graph_api.tensor import TensorAttr

__all__ = [
    "MoeBuilder",
    "MoeGroupedMatmulAttributes",
    "MoeGroupedMatmulBwdNode",
    "MoeGroupedMatmulMode",
    "MoeGroupedMatmulNode",
]


class MoeGroupedMatmulMode(Enum):
    """Where routed row r comes from and goes to."""

    NONE = "NONE"
    """From row r to row r: tokens lie in the order of their experts already."""

    GATHER = "GATHER"
    """From row token_index[r] to row r."""

    SCATTER = "SCATTER"
    """From row r to row token_index[r] * top_k + token_ks[r]."""


@dataclass(frozen=True, kw_only=True)
class MoeGroupedMatmulAttributes(Attributes):
    """Attributes of a grouped product.

    Attributes:
        mode: how rows are routed.
        top_k: of SCATTER: to how many experts each token goes.
    """

    mode: MoeGroupedMatmulMode = MoeGroupedMatmulMode.NONE
    top_k: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.mode, MoeGroupedMatmulMode):
            raise GraphError(f"moe_grouped_matmul: mode must be a MoeGroupedMatmulMode, got {self.mode!r}")
        if isinstance(self.top_k, bool) or not isinstance(self.top_k, int) or not 0 <= self.top_k < 2**31:
            raise GraphError(f"moe_grouped_matmul: top_k must be an integer of 32 bits, at least 0; got {self.top_k!r}")
        if self.mode is MoeGroupedMatmulMode.SCATTER and self.top_k < 1:
            raise GraphError(f"moe_grouped_matmul: SCATTER needs top_k, the experts of each token; it is {self.top_k}")


def groups_of(offsets: Array, rows: int) -> Array:
    """For each row the group that it belongs to, -1 in front of the first: the number of offsets up to it, less one."""
    return (offsets.reshape(1, -1) <= np.arange(rows).reshape(-1, 1)).sum(1) - 1


class RoutedNode(Node):
    """What the product and its gradient share."""

    def check_rank(self, *ports: str) -> None:
        """Tensors are [1, rows, width]."""
        for port in ports:
            tensor = self.inputs[port]
            if tensor.rank != 3 or tensor.dims[0] != 1:
                raise self.fail(f"{port} '{tensor.name}' has dims {tensor.dims}; it must have dims [1, rows, width]")

    def check_offsets(self, experts: int) -> None:
        """A group per expert, or several times as many."""
        offsets = self.inputs["first_token_offset"]
        if offsets.rank != 3 or offsets.dims[1:] != (1, 1):
            raise self.fail(f"first_token_offset has dims {offsets.dims}; it must have dims [groups, 1, 1]")
        if offsets.dims[0] % experts:
            raise self.fail(
                f"first_token_offset has {offsets.dims[0]} groups for {experts} experts; it must be a multiple"
            )
        self.check_integers("first_token_offset")

    def check_integers(self, port: str) -> None:
        """Routing is INT32."""
        tensor = self.inputs[port]
        if tensor.data_type is not DataType.INT32:
            raise self.fail(f"{port} '{tensor.name}' is {tensor.data_type.name}; it must be INT32")

    def conversion_eps(self, port: str) -> float:
        """What converting an operand to the compute type loses."""
        return 0.5 * self.compute.eps if self.inputs[port].data_type.eps < self.compute.eps else 0.0

    def widened(self, inputs: Arrays, errors: Arrays, port: str) -> tuple[Array, Array]:
        """Magnitudes of an operand, and its error as it is read."""
        value = np.abs(inputs[port])
        return value, np.broadcast_to(errors[port], value.shape) + self.conversion_eps(port) * value


@register_op
class MoeGroupedMatmulNode(RoutedNode):
    """output[dst(r)] = token[src(r)] @ weight[group(r) % E] for each routed row r; rows that no r goes to are 0.

    Group g holds the rows from first_token_offset[g] up to the next group's first, the last one those up to the end. A
    row belongs to the last of all offsets, in order of size, that are not behind it, whatever they are; a row in front
    of all belongs to no group. A row whose token_index or token_ks names nothing that is there gives 0, or goes
    nowhere; of several that SCATTER sends to one row the last one stays. src and dst are what the mode says.

    Shapes:  token [1, T, K], weight [E, K, N], first_token_offset [groups, 1, 1], groups a multiple of E,
             token_index, token_ks [1, R, 1] -> output [1, R, N]; R = T but for GATHER
    Dtypes:  token and weight any number, the others INT32; accumulates in the compute type
    Layout:  any strides; output is row-major unless it is set
    Raises:  GraphError if dims do not fit, or the mode lacks an operand or has one too many
    Source:  hipDNN MoeGroupedMatmul; cuDNN's moe_grouped_matmul
    """

    op = "moe_grouped_matmul"
    attributes_type = MoeGroupedMatmulAttributes
    attributes: MoeGroupedMatmulAttributes
    input_ports = ("token", "weight", "first_token_offset", "token_index", "token_ks")
    optional_inputs = ("token_index", "token_ks")
    output_ports = ("output",)

    @property
    def rows(self) -> int:
        """Routed rows."""
        gathers = self.attributes.mode is MoeGroupedMatmulMode.GATHER
        return self.inputs["token_index" if gathers else "token"].dims[1]

    def validate(self) -> None:
        mode, token, weight = self.attributes.mode, self.inputs["token"], self.inputs["weight"]
        self.check_rank("token")
        if weight.rank != 3:
            raise self.fail(f"weight '{weight.name}' has dims {weight.dims}; it must have dims [experts, K, N]")
        if token.dims[2] != weight.dims[1]:
            raise self.fail(f"inner dims differ (token {token.dims} has K={token.dims[2]}, weight {weight.dims} has "
                            f"K={weight.dims[1]}); is weight transposed?")  # fmt: skip
        self.check_offsets(weight.dims[0])
        wanted = {
            "token_index": mode is not MoeGroupedMatmulMode.NONE,
            "token_ks": mode is MoeGroupedMatmulMode.SCATTER,
        }
        for port, needed in wanted.items():
            if needed != (port in self.inputs):
                raise self.fail(f"mode {mode.name} {'needs' if needed else 'has no'} operand {port}")
            if needed:
                self.check_integers(port)
                dims = self.inputs[port].dims
                if len(dims) != 3 or (dims[0], dims[2]) != (1, 1):
                    raise self.fail(f"{port} has dims {dims}; it must have dims [1, rows, 1]")
                if mode is MoeGroupedMatmulMode.SCATTER and dims[1] != token.dims[1]:
                    raise self.fail(f"SCATTER routes each of {token.dims[1]} token rows, {port} {dims} has {dims[1]}")
        if not self.compute.is_float:
            self.compute = DataType.FLOAT

    def infer(self) -> None:
        dims = (1, self.rows, self.inputs["weight"].dims[2])
        self.outputs["output"].resolve(strides=packed_strides(dims))
        self.infer_output("output", dims, self.inputs["token"])

    def flops(self) -> int:
        return 2 * self.outputs["output"].volume * self.inputs["token"].dims[2]

    def reference(self, inputs: Arrays) -> dict[str, Array]:
        return {"output": self._routed(inputs, inputs["token"], inputs["weight"])}

    def error(self, inputs: Arrays, errors: Arrays, outputs: Arrays) -> dict[str, Array]:
        token, token_error = self.widened(inputs, errors, "token")
        weight, weight_error = self.widened(inputs, errors, "weight")
        bound = self._routed(inputs, self.gamma(token.shape[2]) * token + token_error, weight)
        return {"output": bound + self._routed(inputs, token + token_error, weight_error)}

    def _routed(self, inputs: Arrays, token: Array, weight: Array) -> Array:
        mode, rows = self.attributes.mode, self.rows
        groups = groups_of(inputs["first_token_offset"], rows)
        source = target = np.arange(rows)
        if mode is MoeGroupedMatmulMode.GATHER:
            source = inputs["token_index"].astype(np.int64).ravel()
        elif mode is MoeGroupedMatmulMode.SCATTER:
            index, ks = (inputs[port].astype(np.int64).ravel() for port in ("token_index", "token_ks"))
            target = np.where((ks >= 0) & (ks < self.attributes.top_k), index * self.attributes.top_k + ks, -1)
        output = np.zeros(self.outputs["output"].dims)
        for row in range(rows):
            if groups[row] >= 0 and 0 <= target[row] < rows:
                known = 0 <= source[row] < token.shape[1]
                expert = weight[groups[row] % weight.shape[0]]
                output[0, target[row]] = token[0, source[row]] @ expert if known else 0.0
            elif 0 <= target[row] < rows:
                output[0, target[row]] = 0.0
        return output


@register_op
class MoeGroupedMatmulBwdNode(RoutedNode):
    """dweight[e, k, n] = sum over the rows r of expert e of token[r, k] * doutput[r, n].

    Which rows are an expert's is said by first_token_offset as in :class:`MoeGroupedMatmulNode`; there is no routing.

    Shapes:  doutput [1, T, N], token [1, T, K], first_token_offset [groups, 1, 1] -> dweight [E, K, N]; E is the number
             of groups unless dims of dweight are set, and divides it
    Dtypes:  doutput and token any number, first_token_offset INT32; accumulates in the compute type
    Layout:  any strides; dweight takes strides [K * N, 1, K] unless it is set
    Raises:  GraphError if dims do not fit
    Source:  hipDNN MoeGroupedMatmulBwd, whose reference wants as many groups as experts; cuDNN's moe_grouped_matmul_bwd
    """

    op = "moe_grouped_matmul_bwd"
    input_ports = ("doutput", "token", "first_token_offset")
    output_ports = ("dweight",)

    def validate(self) -> None:
        self.check_rank("doutput", "token")
        doutput, token = self.inputs["doutput"].dims, self.inputs["token"].dims
        if doutput[1] != token[1]:
            raise self.fail(f"doutput {doutput} and token {token} must have as many rows, they have {doutput[1]} and "
                            f"{token[1]}")  # fmt: skip
        self.check_offsets(1)
        if not self.compute.is_float:
            self.compute = DataType.FLOAT

    def infer(self) -> None:
        out, groups = self.outputs["dweight"], self.inputs["first_token_offset"].dims[0]
        experts = out.dims[0] if out.has_dims and out.rank == 3 else groups
        self.check_offsets(experts)
        k, n = self.inputs["token"].dims[2], self.inputs["doutput"].dims[2]
        out.resolve(strides=(k * n, 1, k))
        self.infer_output("dweight", (experts, k, n), self.inputs["token"])

    def respecified_dims(self, port: str, old: Node) -> tuple[int, ...] | None:
        experts = old.outputs["dweight"].dims[0]
        groups = self.inputs["first_token_offset"].dims[0], old.inputs["first_token_offset"].dims[0]
        return None if experts == groups[1] else (experts, self.inputs["token"].dims[2], self.inputs["doutput"].dims[2])

    def flops(self) -> int:
        k, n = self.inputs["token"].dims[2], self.inputs["doutput"].dims[2]
        return 2 * self.inputs["token"].dims[1] * k * n

    def reference(self, inputs: Arrays) -> dict[str, Array]:
        return {"dweight": self._summed(inputs, inputs["token"], inputs["doutput"])}

    def error(self, inputs: Arrays, errors: Arrays, outputs: Arrays) -> dict[str, Array]:
        token, token_error = self.widened(inputs, errors, "token")
        doutput, doutput_error = self.widened(inputs, errors, "doutput")
        bound = self._summed(inputs, self.gamma(token.shape[1]) * token + token_error, doutput)
        return {"dweight": bound + self._summed(inputs, token + token_error, doutput_error)}

    def _summed(self, inputs: Arrays, token: Array, doutput: Array) -> Array:
        dims = self.outputs["dweight"].dims
        groups = groups_of(inputs["first_token_offset"], token.shape[1])
        output = np.zeros(dims)
        for expert in range(dims[0]):
            own = (groups >= 0) & (groups % dims[0] == expert)
            output[expert] = token[0, own].T @ doutput[0, own]
        return output


class MoeBuilder(GraphBuilder):
    """Builder methods of the mixture of experts."""

    def moe_grouped_matmul(
        self,
        token: TensorAttr,
        weight: TensorAttr,
        first_token_offset: TensorAttr,
        token_index: TensorAttr | None = None,
        token_ks: TensorAttr | None = None,
        *,
        mode: MoeGroupedMatmulMode = MoeGroupedMatmulMode.NONE,
        top_k: int = 0,
        compute_data_type: DataType | None = None,
        name: str | None = None,
    ) -> TensorAttr:
        """Adds a product of rows with the matrices of their experts; see :class:`MoeGroupedMatmulNode`.

        Args:
            token: [1, T, K].
            weight: [experts, K, N].
            first_token_offset: INT32 [groups, 1, 1], not decreasing.
            token_index: INT32 [1, rows, 1], of GATHER and SCATTER.
            token_ks: INT32 [1, rows, 1], of SCATTER: which of its token's experts a row belongs to.
            mode: how rows are routed.
            top_k: of SCATTER: to how many experts each token goes.

        Returns:
            output [1, rows, N], virtual until ``set_output(True)``.

        Raises:
            GraphError: a bad attribute.
        """
        attributes = MoeGroupedMatmulAttributes(mode=mode, top_k=top_k)
        inputs = {"token": token, "weight": weight, "first_token_offset": first_token_offset,
                  "token_index": token_index, "token_ks": token_ks}  # fmt: skip
        node = self.add_node(MoeGroupedMatmulNode, inputs, name=name, attributes=attributes,
                             compute_data_type=compute_data_type)  # fmt: skip
        return node.outputs["output"]

    def moe_grouped_matmul_bwd(
        self,
        doutput: TensorAttr,
        token: TensorAttr,
        first_token_offset: TensorAttr,
        *,
        compute_data_type: DataType | None = None,
        name: str | None = None,
    ) -> TensorAttr:
        """Adds the gradient of a grouped product by its weights; see :class:`MoeGroupedMatmulBwdNode`.

        Args:
            doutput: [1, T, N]; the gradient of the loss by the product's output.
            token: [1, T, K], in the order of their experts.
            first_token_offset: INT32 [groups, 1, 1], as in the forward pass.

        Returns:
            dweight [experts, K, N], virtual until ``set_output(True)``; set its dims where groups outnumber experts.
        """
        inputs = {"doutput": doutput, "token": token, "first_token_offset": first_token_offset}
        node = self.add_node(MoeGroupedMatmulBwdNode, inputs, name=name, compute_data_type=compute_data_type)
        return node.outputs["dweight"]

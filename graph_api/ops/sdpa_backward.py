"""Gradients of scaled dot-product attention, from its result and the statistics that the forward pass saved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from fusilli_ground.late_numpy import np
from graph_api.builder import GraphBuilder
from graph_api.dtypes import DataType
from graph_api.node import Array, Arrays, register_op
from graph_api.ops.attention import AttentionAttributes, AttentionNode, DiagonalAlignment
from graph_api.tensor import TensorAttr

__all__ = ["SdpaBackwardAttributes", "SdpaBackwardBuilder", "SdpaBackwardNode", "SdpaBackwardOutputs"]


class SdpaBackwardOutputs(NamedTuple):
    """Results of :meth:`Graph.sdpa_backward`."""

    dq: TensorAttr
    dk: TensorAttr
    dv: TensorAttr


@dataclass(frozen=True, kw_only=True)
class SdpaBackwardAttributes(AttentionAttributes):
    """Attributes of attention's gradients: those of :class:`AttentionAttributes`."""

    OP: ClassVar[str] = "sdpa_backward"


class _Steps(NamedTuple):
    """Intermediate values of the reference, all with a head per query head."""

    q: Array
    k: Array
    v: Array
    do: Array
    p: Array  # weights [B, H, Sq, Skv]
    dp: Array  # their gradients, after dropout's mask
    delta: Array  # [B, H, Sq, 1]
    ds: Array  # gradients of scores [B, H, Sq, Skv]


@register_op
class SdpaBackwardNode(AttentionNode):
    """dq, dk, dv and the gradients of a bias and a sink.

    p = exp(scale * q k^T + attn_mask - stats); dv = p^T do; ds = p * (do v^T - delta), delta = sum(do * o) over Dv;
    dq = scale * ds k; dk = scale * ds^T q; dbias = ds summed over what the bias broadcasts along; dsink_token =
    -sum(exp(sink_token - stats) * delta) over batch and queries. dk and dv are summed over the query heads of a group.

    Shapes:  q, dq [B, H, Sq, D], k, dk [B, Hk, Skv, D], v, dv [B, Hv, Skv, Dv], o, do [B, H, Sq, Dv], stats
             [B, H, Sq, 1] or [B, H, Sq]; attn_mask and dropout_mask broadcast, right-aligned, to [B, H, Sq, Skv]; dbias
             has the dims of attn_mask; sink_token and dsink_token [1, H, 1, 1]; the others as in attention
    Dtypes:  floating point; products accumulate in the compute type. p and ds may be rounded to the type of the operand
             that they are multiplied with, as fused kernels do. Lengths INT32 or INT64
    Layout:  any strides; dq, dk and dv take the stride orders of q, k and v unless they are set
    Rules:   p is 0 where the window or the lengths hide a key and where stats is -inf: rows that see nothing have no
             gradient. What lies behind the lengths is never used, and its gradients are 0. With dropout, dv has p *
             dropout_mask * dropout_scale for p, and ds = p * (do v^T * dropout_mask - delta * dropout_scale_inv) *
             dropout_scale; the scales are each other's inverse. A sink needs no port for dq, dk and dv: it is in stats
    Raises:  GraphError if shapes, types or options do not fit
    Source:  hipDNN SdpaBackwardAttributes, CpuReferenceSdpa (which has groups of heads, masks and the causal window);
             dropout, lengths, alibi, dbias before the scale: cuDNN's front end (CompositeSDPABackwardNode). hipDNN's
             reference takes stats of rank 3, its front end of rank 4. The sink's gradient is cuDNN's, but for the minus
             sign, which that graph leaves to its kernels and its tests (autograd) have; hipDNN's schema has no place
             for it
    """

    op = "sdpa_backward"
    attributes_type = SdpaBackwardAttributes
    attributes: SdpaBackwardAttributes
    input_ports = (
        "q", "k", "v", "o", "do", "stats", "attn_mask", "scale", "seq_len_q", "seq_len_kv", "seed", "offset",
        "dropout_mask", "dropout_scale", "dropout_scale_inv", "sink_token",
    )  # fmt: skip
    optional_inputs = input_ports[6:]
    output_ports = ("dq", "dk", "dv", "dbias", "dsink_token")
    optional_outputs = ("dbias", "dsink_token")

    def unsettled(self) -> str | None:
        """Which option has no defined result here, or None."""
        if self.attributes.alibi_mask and not self.has_settled_alibi:
            return "alibi_mask"
        return "dropout_probability" if self.attributes.dropout_probability else None

    def validate(self) -> None:
        if not self.compute.is_float:
            self.compute = DataType.FLOAT
        self.check_heads()
        self.check_floats(
            "q", "k", "v", "o", "do", "stats", "attn_mask", "scale", "dropout_mask", "dropout_scale",
            "dropout_scale_inv", "sink_token",
        )  # fmt: skip
        batch, heads, queries, _ = self.score_dims
        for port in ("o", "do"):
            self.check_dims(port, (batch, heads, queries, self.inputs["v"].dims[3]))
        if self.inputs["stats"].dims != (batch, heads, queries):
            self.check_dims("stats", (batch, heads, queries, 1))
        self.check_like_scores("attn_mask")
        self.check_sequence_lengths()
        self.check_dropout()
        if ("dropout_scale" in self.inputs) != ("dropout_scale_inv" in self.inputs):
            raise self.fail("dropout_scale and dropout_scale_inv are each other's inverse; give both, or none of them")
        self.check_scale()
        self.check_dims("sink_token", (1, heads, 1, 1))
        for port, source in (("dbias", "attn_mask"), ("dsink_token", "sink_token")):
            if port in self.outputs and source not in self.inputs:
                raise self.fail(f"{port} is the gradient of {source}, which is missing")
        if "sink_token" in self.inputs and "dsink_token" not in self.outputs:
            raise self.fail("sink_token is only needed for dsink_token, which is missing; stats have the sink in them")

    def infer(self) -> None:
        for port in ("q", "k", "v"):
            self.infer_output(f"d{port}", self.inputs[port].dims, self.inputs[port])
        for port, source in (("dbias", "attn_mask"), ("dsink_token", "sink_token")):
            if port in self.outputs:
                self.infer_output(port, self.inputs[source].dims, self.inputs[source])
        for port, tensor in self.outputs.items():
            if not tensor.data_type.is_float:
                raise self.fail(f"{port} must be floating point, got {tensor.data_type.name}")

    def flops(self) -> int:
        b, h, sq, skv = self.score_dims
        return 2 * b * h * sq * skv * (3 * self.inputs["q"].dims[3] + 2 * self.inputs["v"].dims[3])

    def reference(self, inputs: Arrays) -> dict[str, Array]:
        option = self.unsettled()
        if option is not None:
            raise self.fail(f"{option} has no reference result: its meaning is not settled; leave it out")
        x, scale = self._steps(inputs), self.scale_of(inputs)
        results = {
            "dq": scale * (x.ds @ x.k),
            "dk": self._grouped("k", scale * (np.swapaxes(x.ds, 2, 3) @ x.q)),
            "dv": self._grouped("v", np.swapaxes(x.p * self.dropped(inputs), 2, 3) @ x.do),
        }
        if "dbias" in self.outputs:
            results["dbias"] = self._like_bias(x.ds)
        if "dsink_token" in self.outputs:
            share = self._sink_share(inputs)
            results["dsink_token"] = -np.sum(share * x.delta, axis=(0, 2), keepdims=True)
        return {port: results[port] for port in self.outputs}

    def _steps(self, inputs: Arrays) -> _Steps:
        q, o, do = (self.within(inputs, "seq_len_q", inputs[port]) for port in ("q", "o", "do"))
        k, v = (self.repeated(self.within(inputs, "seq_len_kv", inputs[port])) for port in ("k", "v"))
        scores, stats = self.scores(inputs, q, k), self._stats(inputs)
        hidden = (scores == -np.inf) | (stats == -np.inf)
        p = np.where(hidden, 0.0, np.exp(scores - stats))
        delta = np.sum(do * o, axis=3, keepdims=True)
        dp = do @ np.swapaxes(v, 2, 3)
        if "dropout_mask" not in inputs:
            return _Steps(q, k, v, do, p, dp, delta, p * (dp - delta))
        dp = dp * inputs["dropout_mask"]
        inverse = inputs["dropout_scale_inv"].ravel()[0] if "dropout_scale_inv" in inputs else 1.0
        ds = p * (dp - delta * inverse) * self._dropout_scale(inputs)
        return _Steps(q, k, v, do, p, dp, delta, ds)

    @staticmethod
    def _dropout_scale(inputs: Arrays) -> float:
        return float(inputs["dropout_scale"].ravel()[0]) if "dropout_scale" in inputs else 1.0

    def _stats(self, inputs: Arrays) -> Array:
        """[B, H, Sq, 1], -inf behind the lengths: no weight there."""
        stats = inputs["stats"].reshape(*self.score_dims[:3], 1)
        if not self.attributes.padding_mask:
            return stats
        rows: Array = np.arange(float(stats.shape[2])).reshape(1, 1, -1, 1)
        return np.where(rows < inputs["seq_len_q"], stats, -np.inf)

    def _sink_share(self, inputs: Arrays) -> Array:
        """The weight of the sink, [B, H, Sq, 1]."""
        stats = self._stats(inputs)
        return np.where(stats == -np.inf, 0.0, np.exp(inputs["sink_token"] - stats))

    def _grouped(self, port: str, gradient: Array) -> Array:
        """Summed over the query heads of a group."""
        b, heads, rows, size = self.inputs[port].dims
        return gradient.reshape(b, heads, -1, rows, size).sum(2)

    def bias_axes(self) -> tuple[int, ...]:
        """Axes of the scores along which the bias repeats."""
        dims = self.inputs["attn_mask"].dims
        padded = (*(1,) * (4 - len(dims)), *dims)
        return tuple(axis for axis in range(4) if padded[axis] != self.score_dims[axis])

    def _like_bias(self, ds: Array) -> Array:
        return ds.sum(self.bias_axes(), keepdims=True).reshape(self.inputs["attn_mask"].dims)

    # ---- errors ---------------------------------------------------------------------------------------------------

    def error(self, inputs: Arrays, errors: Arrays, outputs: Arrays) -> dict[str, Array]:
        x, eps, scale = self._steps(inputs), self.compute.eps, abs(self.scale_of(inputs))
        p, ds, delta = self._errors(inputs, errors, x)
        kept = np.abs(self.dropped(inputs))
        shown = x.p * kept
        moved = p * kept + 4.0 * eps * shown + self.rounding(self.inputs["do"], shown)
        moved = moved + self._dropout_error(inputs, errors, x.p)
        size, q, k, do = np.abs(x.ds), np.abs(x.q), np.abs(x.k), np.abs(x.do)
        for_k, for_q = (ds + self.rounding(self.inputs[port], size + ds) for port in ("k", "q"))
        queries = self.score_dims[2]
        bounds = {
            "dq": scale * self._product(for_k, size, k, self.error_of("k", errors), self.score_dims[3]),
            "dk": scale * self._across(for_q, size, q, self._own("q", errors), queries, "k"),
            "dv": self._across(moved, shown, do, self._own("do", errors), queries, "v"),
        }
        for port in ("dq", "dk"):
            bounds[port] = bounds[port] + 4.0 * eps * np.abs(outputs[port])
            if "scale" in inputs and np.any(errors["scale"]):
                bounds[port] = bounds[port] + errors["scale"].ravel()[0] / scale * np.abs(outputs[port])
        if "dbias" in self.outputs:
            terms = int(np.prod([self.score_dims[axis] for axis in self.bias_axes()], dtype=np.int64))
            bounds["dbias"] = self._like_bias(for_k + (self.sum_gamma(terms) if terms > 1 else 0.0) * size)
        if "dsink_token" in self.outputs:
            share, stats = self._sink_share(inputs), self._stats(inputs)
            apart = np.where(stats == -np.inf, 0.0, np.abs(inputs["sink_token"]) + np.abs(stats))
            moved = self._stats_error(errors) + errors["sink_token"] + 4.0 * eps * apart + 16.0 * eps
            each = share * (np.expm1(moved) * np.abs(x.delta) + delta + self.sum_gamma(queries) * np.abs(x.delta))
            bounds["dsink_token"] = np.sum(each, axis=(0, 2), keepdims=True)
        return {port: bounds[port] for port in self.outputs}

    def _errors(self, inputs: Arrays, errors: Arrays, x: _Steps) -> tuple[Array, Array, Array]:
        """Errors of p, ds and delta in the compute type, ds as it follows from p rounded to the type of do."""
        eps = self.compute.eps
        scores = self.scores(inputs, x.q, x.k)
        stats = self._stats(inputs)
        apart = np.where((scores == -np.inf) | (stats == -np.inf), 0.0, np.abs(scores) + np.abs(stats))
        moved = self.score_error(inputs, errors, x.q, x.k) + self._stats_error(errors) + 4.0 * eps * apart + 16.0 * eps
        p = x.p * np.expm1(np.minimum(moved, 50.0))
        size, values = np.abs(x.do), np.abs(np.swapaxes(x.v, 2, 3))
        o = np.abs(self.within(inputs, "seq_len_q", inputs["o"]))
        d_o, d_do = self._own("o", errors), self._own("do", errors)
        delta = np.sum((self.sum_gamma(o.shape[3]) + eps) * size * o + d_do * o + size * d_o, axis=3, keepdims=True)
        dp = self.gamma(o.shape[3]) * (size @ values) + d_do @ values
        dp = dp + size @ np.broadcast_to(np.swapaxes(self.error_of("v", errors), 2, 3), values.shape)
        mask, factor, inverse = self._dropout(inputs)
        difference = np.abs(x.dp - x.delta * inverse)
        wrong = dp * mask + delta * inverse + 4.0 * eps * (np.abs(x.dp) + np.abs(x.delta) * inverse)
        if "dropout_mask" in inputs:
            raw = size @ values
            wrong = wrong + errors["dropout_mask"] * raw
            for port in ("dropout_scale", "dropout_scale_inv"):
                if port in inputs:
                    wrong = wrong + errors[port].ravel()[0] * (np.abs(x.dp) + np.abs(x.delta) * (1.0 + inverse))
        rounded = p + self.rounding(self.inputs["do"], x.p)
        ds = factor * (rounded * difference + (x.p + rounded) * wrong + 6.0 * eps * x.p * difference)
        return p, ds, delta

    def _dropout(self, inputs: Arrays) -> tuple[Array, float, float]:
        """Magnitudes of mask, scale and inverse scale."""
        if "dropout_mask" not in inputs:
            return np.ones((1, 1, 1, 1)), 1.0, 1.0
        inverse = abs(float(inputs["dropout_scale_inv"].ravel()[0])) if "dropout_scale_inv" in inputs else 1.0
        return np.abs(inputs["dropout_mask"]), abs(self._dropout_scale(inputs)), inverse

    def _dropout_error(self, inputs: Arrays, errors: Arrays, p: Array) -> Array:
        if "dropout_mask" not in inputs:
            return np.zeros(())
        mask, factor, _ = self._dropout(inputs)
        scale = errors["dropout_scale"].ravel()[0] if "dropout_scale" in errors else 0.0
        return p * (errors["dropout_mask"] * factor + mask * scale)

    def _stats_error(self, errors: Arrays) -> Array:
        error = np.broadcast_to(errors["stats"], self.inputs["stats"].dims)
        return error.reshape(*self.score_dims[:3], 1)

    def _own(self, port: str, errors: Arrays) -> Array:
        return np.broadcast_to(errors[port], self.inputs[port].dims)

    def _product(self, moved: Array, size: Array, other: Array, wrong: Array, terms: int) -> Array:
        """Error of a product of a matrix that is off by ``moved`` with one that is off by ``wrong``."""
        wrong = np.broadcast_to(wrong, other.shape)
        return (moved + self.gamma(terms) * size) @ other + (size + moved) @ wrong

    def _across(self, moved: Array, size: Array, other: Array, wrong: Array, terms: int, port: str) -> Array:
        """The same of a transposed matrix, summed over the heads of a group."""
        heads = self.score_dims[1] // self.inputs[port].dims[1]
        moved, size = np.swapaxes(moved, 2, 3), np.swapaxes(size, 2, 3)
        return self._grouped(port, self._product(moved, size, other, wrong, terms * heads))


class SdpaBackwardBuilder(GraphBuilder):
    """Builder method of attention's gradients."""

    def sdpa_backward(
        self,
        q: TensorAttr,
        k: TensorAttr,
        v: TensorAttr,
        o: TensorAttr,
        do: TensorAttr,
        stats: TensorAttr,
        *,
        bias: TensorAttr | None = None,
        dbias: TensorAttr | None = None,
        attn_scale: TensorAttr | float | None = None,
        causal_mask: bool = False,
        causal_mask_bottom_right: bool = False,
        diagonal_band_left_bound: int | None = None,
        diagonal_band_right_bound: int | None = None,
        diagonal_alignment: DiagonalAlignment = DiagonalAlignment.TOP_LEFT,
        padding_mask: bool = False,
        seq_len_q: TensorAttr | None = None,
        seq_len_kv: TensorAttr | None = None,
        alibi_mask: bool = False,
        dropout_probability: float | None = None,
        seed: TensorAttr | None = None,
        offset: TensorAttr | None = None,
        dropout_mask: TensorAttr | None = None,
        dropout_scale: TensorAttr | None = None,
        dropout_scale_inv: TensorAttr | None = None,
        sink_token: TensorAttr | None = None,
        dsink_token: TensorAttr | None = None,
        compute_data_type: DataType | None = None,
        name: str | None = None,
    ) -> SdpaBackwardOutputs:
        """Adds the gradients of attention; see :class:`SdpaBackwardNode`.

        Args:
            q, k, v: what attention was taken of.
            o, stats: its result and statistics, [B, H, Sq, Dv] and [B, H, Sq, 1].
            do: the gradient of ``o``.
            bias: what was added to the scores.
            dbias: a tensor for its gradient, of its dims.
            attn_scale: a number, or a tensor of one element; default 1/sqrt(D).
            causal_mask, causal_mask_bottom_right, diagonal_band_left_bound, diagonal_band_right_bound,
                diagonal_alignment: which keys a query sees, see :class:`AttentionAttributes`.
            padding_mask, seq_len_q, seq_len_kv: lengths of each sequence of the batch, [B, 1, 1, 1].
            alibi_mask: as in :meth:`Graph.sdpa`.
            dropout_mask, dropout_scale, dropout_scale_inv: what weights were multiplied with, and 1 / dropout_scale.
            sink_token, dsink_token: one logit per head, [1, H, 1, 1], and a tensor for its gradient.
            dropout_probability, seed, offset: what hipDNN knows besides; targets decline it.

        Returns:
            dq, dk and dv, virtual until ``set_output(True)``.

        Raises:
            GraphError: options that exclude each other.
        """
        attributes = SdpaBackwardAttributes(
            attn_scale_value=None if isinstance(attn_scale, TensorAttr) else attn_scale, padding_mask=padding_mask,
            causal_mask=causal_mask, causal_mask_bottom_right=causal_mask_bottom_right,
            left_bound=diagonal_band_left_bound, right_bound=diagonal_band_right_bound,
            diagonal_alignment=diagonal_alignment, alibi_mask=alibi_mask, dropout_probability=dropout_probability,
        )  # fmt: skip
        inputs = {
            "q": q, "k": k, "v": v, "o": o, "do": do, "stats": stats, "attn_mask": bias,
            "scale": attn_scale if isinstance(attn_scale, TensorAttr) else None, "seq_len_q": seq_len_q,
            "seq_len_kv": seq_len_kv, "seed": seed, "offset": offset, "dropout_mask": dropout_mask,
            "dropout_scale": dropout_scale, "dropout_scale_inv": dropout_scale_inv, "sink_token": sink_token,
        }  # fmt: skip
        written = {"dbias": dbias, "dsink_token": dsink_token}
        node = self.add_node(
            SdpaBackwardNode, inputs, name=name, attributes=attributes, compute_data_type=compute_data_type,
            outputs={port: tensor for port, tensor in written.items() if tensor is not None},
        )  # fmt: skip
        return SdpaBackwardOutputs(*(node.outputs[port] for port in ("dq", "dk", "dv")))

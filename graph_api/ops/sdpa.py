"""Scaled dot-product attention, forward: grouped heads, masks, windows, padding, statistics.

Source of the semantics: hipDNN's SdpaAttributes and cuDNN's front end; without options it is
``torch.nn.functional.scaled_dot_product_attention``. Options whose result is not settled (dropout, paged caches, alibi,
8-bit scaling) can be built and saved; they have no reference and targets decline them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, cast

from fusilli_ground.late_numpy import np
from graph_api.builder import GraphBuilder
from graph_api.dtypes import DataType
from graph_api.errors import GraphError
from graph_api.node import Array, Arrays, Attributes, Node, register_op
from graph_api.tensor import TensorAttr, flag, int_tuple

__all__ = [
    "AttentionImplementation",
    "DiagonalAlignment",
    "SdpaAttributes",
    "SdpaBuilder",
    "SdpaNode",
    "SdpaOutputs",
    "Window",
]


_NO_BOUND = -1
"""How hipDNN's graphs write a window without a bound on one side."""


class DiagonalAlignment(Enum):
    """Where the diagonal of a window starts: at the first query and key, or so that it ends at the last of both."""

    TOP_LEFT = "TOP_LEFT"
    BOTTOM_RIGHT = "BOTTOM_RIGHT"


class AttentionImplementation(Enum):
    """A hint how to compute: as the engine likes, as separate steps, or as one kernel."""

    AUTO = "AUTO"
    COMPOSITE = "COMPOSITE"
    UNIFIED = "UNIFIED"


class Window(NamedTuple):
    """Which keys j a query i sees: i + off - left <= j <= i + off + right.

    Attributes:
        bottom_right: off is (keys - queries), each of the sequence's own length; else 0.
        left, right: None where the window has no bound.
    """

    bottom_right: bool
    left: int | None
    right: int | None

    @property
    def is_open(self) -> bool:
        """True if every query sees every key."""
        return self.left is None and self.right is None


class SdpaOutputs(NamedTuple):
    """Results of :meth:`Graph.sdpa`; ``stats`` is None unless it was asked for."""

    o: TensorAttr
    stats: TensorAttr | None


@dataclass(frozen=True, kw_only=True)
class SdpaAttributes(Attributes):
    """Attributes of attention, under their names in hipDNN's schema.

    Attributes:
        attn_scale_value: factor on q k^T; default 1/sqrt(D).
        generate_stats: write stats.
        padding_mask: sequences are as long as seq_len_q and seq_len_kv say.
        causal_mask, causal_mask_bottom_right: older spellings of a right bound of 0, aligned at the top left or at the
            bottom right. A left bound beside them makes a sliding window, in the newer spelling from then on; a right
            bound other than 0, or another alignment, contradicts them.
        left_bound, right_bound, diagonal_alignment: see :class:`Window`; -1 is no bound, and becomes None.
        alibi_mask: a linear bias per head.
        dropout_probability: of attention weights, 0 for none.
        max_seq_len_kv: of a paged cache.
        mma_core_mode: hint, the type of the matrix products. They are computed in the operands' types here, which is
            never less exact.
        implementation: hint.
    """

    attn_scale_value: float | None = None
    generate_stats: bool = False
    padding_mask: bool = False
    causal_mask: bool = False
    causal_mask_bottom_right: bool = False
    left_bound: int | None = None
    right_bound: int | None = None
    diagonal_alignment: DiagonalAlignment = DiagonalAlignment.TOP_LEFT
    alibi_mask: bool = False
    dropout_probability: float | None = None
    max_seq_len_kv: int | None = None
    mma_core_mode: DataType | None = None
    implementation: AttentionImplementation = AttentionImplementation.AUTO

    def __post_init__(self) -> None:
        for field in ("generate_stats", "padding_mask", "causal_mask", "causal_mask_bottom_right", "alibi_mask"):
            object.__setattr__(self, field, flag(getattr(self, field), f"sdpa: {field}"))
        self._check_numbers()
        for field, kind in (
            ("diagonal_alignment", DiagonalAlignment),
            ("implementation", AttentionImplementation),
        ):
            if not isinstance(getattr(self, field), kind):
                raise GraphError(f"sdpa: {field} must be a {kind.__name__}, got {getattr(self, field)!r}")
        if self.mma_core_mode is not None and not isinstance(self.mma_core_mode, DataType):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GraphError(f"sdpa: mma_core_mode must be a DataType or None, got {self.mma_core_mode!r}")
        self._settle_window()

    def _check_numbers(self) -> None:
        """Numbers become Python's own: JSON has no others, and True would count as 1."""
        for field in ("attn_scale_value", "dropout_probability"):
            value = getattr(self, field)
            if value is None:
                continue
            number = float(cast("float", value)) if isinstance(value, int | float | np.floating) else math.nan
            if isinstance(value, bool) or not math.isfinite(number):
                raise GraphError(f"sdpa: {field} must be a finite number, got {value!r}")
            object.__setattr__(self, field, number)
        if not 0.0 <= (self.dropout_probability or 0.0) < 1.0:
            raise GraphError(f"sdpa: dropout_probability {self.dropout_probability} is outside 0 <= p < 1")
        for field in ("left_bound", "right_bound", "max_seq_len_kv"):
            value = getattr(self, field)
            if value is None:
                continue
            (number,) = int_tuple([value], f"sdpa: {field}")
            if field == "max_seq_len_kv" and not 0 < number < 2**31:
                raise GraphError(f"sdpa: {field} must be a length of at least 1, got {value!r}")
            if field != "max_seq_len_kv" and not _NO_BOUND <= number < 2**63:
                raise GraphError(
                    f"sdpa: {field} {value!r} is no distance: it must be 0 or more, or -1 (or None) for no bound"
                )
            object.__setattr__(self, field, number)

    def _settle_window(self) -> None:
        """One spelling for each window: no bound is None, and a causal flag stands alone.

        Beside a left bound the flag becomes what it means, because versions of hipDNN read the pair differently.
        """
        for field in ("left_bound", "right_bound"):
            if getattr(self, field) == _NO_BOUND:
                object.__setattr__(self, field, None)
        if not (self.causal_mask or self.causal_mask_bottom_right):
            return
        self._check_causal()
        object.__setattr__(self, "right_bound", None)
        if self.left_bound is not None:
            bottom_right = self.causal_mask_bottom_right
            alignment = DiagonalAlignment.BOTTOM_RIGHT if bottom_right else DiagonalAlignment.TOP_LEFT
            for field in ("causal_mask", "causal_mask_bottom_right"):
                object.__setattr__(self, field, False)
            object.__setattr__(self, "diagonal_alignment", alignment)
            object.__setattr__(self, "right_bound", 0)

    def _check_causal(self) -> None:
        if self.causal_mask and self.causal_mask_bottom_right:
            raise GraphError("sdpa: causal_mask and causal_mask_bottom_right exclude each other; set one")
        flag = "causal_mask" if self.causal_mask else "causal_mask_bottom_right"
        if self.right_bound not in (None, 0):
            raise GraphError(
                f"sdpa: {flag} is a right bound of 0, and right_bound is {self.right_bound}; leave one of them out"
            )
        if self.causal_mask and self.diagonal_alignment is DiagonalAlignment.BOTTOM_RIGHT:
            raise GraphError(
                "sdpa: causal_mask is aligned at the top left, and diagonal_alignment is BOTTOM_RIGHT; set "
                "causal_mask_bottom_right, or a right bound of 0 instead of causal_mask"
            )

    @property
    def window(self) -> Window:
        """The window that flags, bounds and alignment say together."""
        left, right = _distance(self.left_bound), _distance(self.right_bound)
        if self.causal_mask or self.causal_mask_bottom_right:
            return Window(self.causal_mask_bottom_right, None, 0)
        return Window(self.diagonal_alignment is DiagonalAlignment.BOTTOM_RIGHT, left, right)


def _distance(bound: int | None) -> int | None:
    """A bound in tokens; None: no bound. Beyond any dim it changes nothing, and positions stay within 64 bits."""
    return None if bound is None else min(bound, 2**40)


_UNSETTLED_INPUTS = (
    "dropout_mask", "dropout_scale", "page_table_k", "page_table_v", "block_mask",
    "descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o",
)  # fmt: skip
_UNSETTLED_OUTPUTS = ("rng_dump", "amax_s", "amax_o")


class _Softmax(NamedTuple):
    """Intermediate values, all [B, H, Sq, Skv] or [B, H, Sq, 1]: scores, exp(scores - max), max, sum."""

    scores: Array
    weights: Array
    max: Array
    sum: Array


@register_op
class SdpaNode(Node):
    """o = softmax(scale * q k^T + attn_mask, where the window and the lengths allow) v.

    Shapes:  q [B, H, Sq, D], k [B, Hk, Skv, D], v [B, Hv, Skv, Dv] -> o [B, H, Sq, Dv]; H is a multiple of Hk and of
             Hv, query head h uses key head h // (H / Hk); attn_mask broadcasts, right-aligned, to [B, H, Sq, Skv];
             seq_len_q and seq_len_kv [B, 1, 1, 1]; scale has one element; sink_token [1, H, 1, 1];
             stats, max, sum_exp [B, H, Sq, 1]
    Dtypes:  floating point; products and softmax accumulate in the compute type. The weights, at most 1 each, and
             q * scale may be rounded to the type of v and of q. Lengths INT32 or INT64
    Layout:  any strides; o takes the stride order of q unless it is set
    Rules:   padding_mask makes each sequence what it would be on its first seq_len_q queries and seq_len_kv keys; what
             lies behind them is never used, and their rows of o are 0. A row that sees no key, or only keys with mask
             -inf, is 0 too; its stats and max are -inf, its sum_exp 0. sink_token is one logit per head that takes part
             in the sum of the weights (and in stats), but has no value
    Raises:  GraphError if shapes, types or options do not fit
    Source:  hipDNN SdpaAttributes
    """

    op = "sdpa"
    attributes_type = SdpaAttributes
    attributes: SdpaAttributes
    input_ports = (
        "q", "k", "v", "attn_mask", "scale", "seq_len_q", "seq_len_kv", "sink_token", "seed", "offset",
        *_UNSETTLED_INPUTS,
    )  # fmt: skip
    optional_inputs = input_ports[3:]
    output_ports = ("o", "stats", "max", "sum_exp", *_UNSETTLED_OUTPUTS)
    optional_outputs = output_ports[1:]

    @property
    def is_paged(self) -> bool:
        """True if k and v are containers of pages, [pages, H, page size, D]."""
        return self.attributes.max_seq_len_kv is not None or not {"page_table_k", "page_table_v"}.isdisjoint(
            self.inputs
        )

    @property
    def score_dims(self) -> tuple[int, int, int, int]:
        """(B, H, Sq, Skv)."""
        q, k = self.inputs["q"].dims, self.inputs["k"].dims
        return (q[0], q[1], q[2], self.attributes.max_seq_len_kv or k[2])

    @property
    def constant_scale(self) -> float | None:
        """The factor on q k^T, or None if it is only known when the graph runs."""
        tensor = self.inputs.get("scale")
        if tensor is None:
            value = self.attributes.attn_scale_value
            return 1.0 / math.sqrt(self.inputs["q"].dims[3]) if value is None else value
        return None if tensor.value is None else float(np.asarray(tensor.value).astype(tensor.data_type.numpy))

    def unsettled(self) -> str | None:
        """Which option has no defined result here, or None."""
        if self.attributes.alibi_mask:
            return "alibi_mask"
        if self.attributes.dropout_probability:
            return "dropout_probability"
        if self.attributes.max_seq_len_kv is not None:
            return "max_seq_len_kv"
        used = [p for p in _UNSETTLED_INPUTS if p in self.inputs] + [p for p in _UNSETTLED_OUTPUTS if p in self.outputs]
        if used:
            return used[0]
        if "sink_token" in self.inputs and ("max" in self.outputs or "sum_exp" in self.outputs):
            return "sink_token together with max or sum_exp"
        return None

    def validate(self) -> None:
        if not self.compute.is_float:
            self.compute = DataType.FLOAT
        self._check_shapes()
        self._check_types()
        self._check_mask()
        self._check_lengths()
        if ("stats" in self.outputs) != self.attributes.generate_stats:
            state = "an output" if "stats" in self.outputs else "no output"
            raise self.fail(f"generate_stats={self.attributes.generate_stats}, but stats is {state}")
        scale = self.inputs.get("scale")
        if scale is not None and (scale.volume != 1 or self.attributes.attn_scale_value is not None):
            raise self.fail(
                f"give one scale: attn_scale_value, or a tensor of 1 element; '{scale.name}' is {scale.dims}"
            )
        sink = self.inputs.get("sink_token")
        if sink is not None and sink.dims != (1, self.score_dims[1], 1, 1):
            raise self.fail(f"sink_token '{sink.name}' must have dims {(1, self.score_dims[1], 1, 1)}, got {sink.dims}")

    def _check_shapes(self) -> None:
        q, k, v = (self.inputs[port].dims for port in ("q", "k", "v"))
        shown = f"q {q}, k {k}, v {v}"
        if not len(q) == len(k) == len(v) == 4:
            raise self.fail(f"q, k and v need rank 4, [batch, heads, sequence, head size]; got {shown}")
        if not self.is_paged and not q[0] == k[0] == v[0]:
            raise self.fail(
                f"batch sizes differ: {shown}; containers of pages need their page tables, which no target serves"
            )
        if q[1] % k[1] or q[1] % v[1]:
            raise self.fail(f"the {q[1]} heads of q must be a multiple of those of k and of v: {shown}")
        if q[3] != k[3]:
            raise self.fail(f"head sizes of q and k differ: {shown}")
        if k[2] != v[2]:
            raise self.fail(f"sequence lengths of k and v differ: {shown}")

    def _check_types(self) -> None:
        for port in ("q", "k", "v", "attn_mask", "scale", "sink_token"):
            tensor = self.inputs.get(port)
            if tensor is not None and not tensor.data_type.is_float:
                added = "; it is added to the scores: make 0 and -inf of it with BINARY_SELECT"
                hint = added if port == "attn_mask" else ""
                raise self.fail(f"{port} '{tensor.name}' must be floating point, got {tensor.data_type.name}{hint}")

    def _check_mask(self) -> None:
        mask = self.inputs.get("attn_mask")
        if mask is None:
            return
        if self.is_paged:
            return  # how many keys the pages hold is not settled
        fits = all(m in (1, s) for m, s in zip(reversed(mask.dims), reversed(self.score_dims), strict=False))
        if mask.rank > 4 or not fits:
            raise self.fail(f"attn_mask '{mask.name}' {mask.dims} does not broadcast to the scores {self.score_dims}")

    def _check_lengths(self) -> None:
        batch = self.score_dims[0]
        for port in ("seq_len_q", "seq_len_kv"):
            tensor = self.inputs.get(port)
            if (tensor is not None) != self.attributes.padding_mask:
                state = "given" if tensor is not None else "missing"
                raise self.fail(
                    f"padding_mask={self.attributes.padding_mask} and {port} is {state}; they belong together"
                )
            if tensor is None:
                continue
            if tensor.dims != (batch, 1, 1, 1):
                raise self.fail(f"{port} '{tensor.name}' must have dims {(batch, 1, 1, 1)}, got {tensor.dims}")
            if tensor.data_type not in (DataType.INT32, DataType.INT64):
                raise self.fail(f"{port} '{tensor.name}' must be INT32 or INT64, got {tensor.data_type.name}")

    def infer(self) -> None:
        b, h, sq, _ = self.score_dims
        q = self.inputs["q"]
        self.infer_output("o", (b, h, sq, self.inputs["v"].dims[3]), q)
        for port in ("stats", "max", "sum_exp"):
            if port in self.outputs:
                self.infer_output(port, (b, h, sq, 1), q)
                if not self.outputs[port].data_type.is_float:
                    raise self.fail(f"{port} must be floating point, got {self.outputs[port].data_type.name}")
        for port in _UNSETTLED_OUTPUTS:
            if port in self.outputs:
                self.infer_output(port, self.score_dims if port == "rng_dump" else (1, 1, 1, 1), q)

    def flops(self) -> int:
        b, h, sq, skv = self.score_dims
        return 2 * b * h * sq * skv * (self.inputs["q"].dims[3] + self.inputs["v"].dims[3])

    def reference(self, inputs: Arrays) -> dict[str, Array]:
        option = self.unsettled()
        if option is not None:
            raise self.fail(f"{option} has no reference result: its meaning is not settled; leave it out")
        softmax = self._softmax(inputs)
        _, v = self._keys(inputs)
        o = np.where(softmax.max == -np.inf, 0.0, softmax.weights @ v / np.where(softmax.sum == 0, 1.0, softmax.sum))
        results = {"o": o, "stats": self._stats(softmax), "max": softmax.max, "sum_exp": softmax.sum}
        return {port: results[port] for port in self.outputs}

    @staticmethod
    def _stats(softmax: _Softmax) -> Array:
        return softmax.max + np.log(softmax.sum)

    def _softmax(self, inputs: Arrays) -> _Softmax:
        k, _ = self._keys(inputs)
        scores = self._scale(inputs) * (inputs["q"] @ np.swapaxes(k, 2, 3))
        if "attn_mask" in inputs:
            scores = scores + inputs["attn_mask"]
        scores = np.where(self._allowed(inputs), scores, -np.inf)
        top = np.max(scores, axis=3, keepdims=True)
        sink = inputs.get("sink_token")
        # With a sink the largest logit may be the sink's; the largest of both keeps every exponential at most 1.
        shift = top if sink is None else np.maximum(top, sink)
        weights = np.exp(scores - np.where(shift == -np.inf, 0.0, shift))
        total = np.sum(weights, axis=3, keepdims=True)
        if sink is not None:
            total = total + np.exp(sink - np.where(shift == -np.inf, 0.0, shift))
        return _Softmax(scores, weights, shift, total)

    def _scale(self, inputs: Arrays) -> float:
        constant = self.constant_scale
        return float(inputs["scale"].ravel()[0]) if constant is None else constant

    def _keys(self, inputs: Arrays) -> tuple[Array, Array]:
        """k and v with one head per query head and zeros behind the lengths."""
        heads = self.score_dims[1]
        k, v = (np.repeat(inputs[port], heads // inputs[port].shape[1], axis=1) for port in ("k", "v"))
        if self.attributes.padding_mask:
            positions: Array = np.arange(float(k.shape[2])).reshape(1, 1, -1, 1)
            inside = positions < inputs["seq_len_kv"]
            k, v = np.where(inside, k, 0.0), np.where(inside, v, 0.0)
        return k, v

    def _allowed(self, inputs: Arrays) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which query sees which key, by window and lengths: booleans that broadcast to the scores."""
        _, _, sq, skv = self.score_dims
        i, j = np.arange(sq)[:, None], np.arange(skv)[None, :]
        lengths = (inputs["seq_len_q"], inputs["seq_len_kv"]) if self.attributes.padding_mask else (sq, skv)
        window = self.attributes.window
        diagonal = i + (lengths[1] - lengths[0] if window.bottom_right else 0)
        allowed = (i < lengths[0]) & (j < lengths[1])
        if window.right is not None:
            allowed = allowed & (j <= diagonal + window.right)
        if window.left is not None:
            allowed = allowed & (j >= diagonal - window.left)
        return allowed

    def error(self, inputs: Arrays, errors: Arrays, outputs: Arrays) -> dict[str, Array]:
        softmax = self._softmax(inputs)
        eps = self.compute.eps
        dead = softmax.max == -np.inf
        total = np.where(softmax.sum == 0, 1.0, softmax.sum)
        d_scores = np.where(softmax.scores == -np.inf, 0.0, self._score_error(inputs, errors, softmax))
        weights = softmax.weights / total
        d_sum = np.sum(weights * np.expm1(np.minimum(d_scores, 50.0)), axis=3, keepdims=True)
        d_max = np.max(d_scores, axis=3, keepdims=True)
        terms = softmax.scores.shape[3]
        magnitude = np.abs(np.where(dead, 0.0, softmax.max)) + np.abs(np.log(total))
        bounds = {
            "o": self._output_error(inputs, errors, outputs["o"], softmax, weights, d_scores),
            "stats": np.where(dead, 0.0, d_sum + self.sum_gamma(terms) + 8.0 * eps * (1.0 + magnitude)),
            "max": np.where(dead, 0.0, d_max),
            "sum_exp": softmax.sum * (d_sum + np.expm1(np.minimum(d_max, 50.0)) + self.sum_gamma(terms)),
        }
        return {port: bounds[port] for port in self.outputs}

    def _score_error(self, inputs: Arrays, errors: Arrays, softmax: _Softmax) -> Array:
        """Error of scores - max, the argument of the exponential, and of the exponential itself."""
        k, _ = self._keys(inputs)
        q, k = np.abs(inputs["q"]), np.abs(np.swapaxes(k, 2, 3))
        eps, terms, scale = self.compute.eps, q.shape[3], abs(self._scale(inputs))
        operand = max(self.inputs[port].data_type.eps for port in ("q", "k"))
        bound = scale * (self.gamma(terms) + 4.0 * eps) * (q @ k)
        if operand > eps:
            # q * scale and then q * scale * log2(e) may be rounded to q's type, in which the matrix unit takes it. Two
            # uniform errors per product: their sum is within 4 of its deviations, and never above the sum of all.
            bound = bound + scale * operand * np.minimum(4.0 / math.sqrt(6.0) * np.sqrt((q * q) @ (k * k)), q @ k)
        if np.any(errors["q"]):
            bound = bound + scale * (np.broadcast_to(errors["q"], q.shape) @ k)
        if np.any(errors["k"]):
            bound = bound + scale * (q @ self._heads(errors["k"], k))
        if "scale" in inputs:
            bound = bound + (errors["scale"].ravel()[0] + eps * scale) * (q @ k)
        if "attn_mask" in inputs:
            mask = np.where(np.isfinite(inputs["attn_mask"]), np.abs(inputs["attn_mask"]), 0.0)
            bound = bound + 2.0 * eps * mask + errors["attn_mask"]
        if "sink_token" in inputs:
            bound = bound + errors["sink_token"] + eps * np.abs(inputs["sink_token"])
        top = np.where(np.isfinite(softmax.max), softmax.max, 0.0)
        distance = np.where(np.isfinite(softmax.scores), np.abs(softmax.scores) + np.abs(softmax.scores - top), 0.0)
        return bound + 4.0 * eps * distance + 16.0 * eps

    def _heads(self, error: Array, like: Array) -> Array:
        """An error of k, expanded to the shape of k transposed with one head per query head."""
        full = np.broadcast_to(error, self.inputs["k"].dims)
        return np.swapaxes(np.repeat(full, like.shape[1] // full.shape[1], axis=1), 2, 3)

    def _output_error(
        self, inputs: Arrays, errors: Arrays, o: Array, softmax: _Softmax, weights: Array, d_scores: Array
    ) -> Array:
        _, v = self._keys(inputs)
        values = np.abs(v)
        kind = self.inputs["v"].data_type
        relative = np.expm1(np.minimum(d_scores, 50.0))
        if kind.eps > self.compute.eps:
            # The weights are rounded to v's type; matrix units flush what is below its normal range to zero.
            smallest = float(kind.finfo.smallest_normal)
            relative = relative + 0.5 * kind.eps
            lost = np.minimum(softmax.weights, smallest) * (softmax.weights < smallest)
            weights_lost = lost / np.where(softmax.sum == 0, 1.0, softmax.sum)
        else:
            weights_lost = np.zeros(())
        moved = weights * relative + weights_lost
        sums = self.gamma(softmax.scores.shape[3]) + 4.0 * self.compute.eps
        bound = moved @ values + np.sum(moved, axis=3, keepdims=True) * np.abs(o)
        bound = bound + sums * (weights @ values + np.abs(o))
        if np.any(errors["v"]):
            full = np.broadcast_to(errors["v"], self.inputs["v"].dims)
            bound = bound + weights @ np.repeat(full, v.shape[1] // full.shape[1], axis=1)
        return np.where(softmax.max == -np.inf, 0.0, bound)


class SdpaBuilder(GraphBuilder):
    """Builder method of attention."""

    def sdpa(
        self,
        q: TensorAttr,
        k: TensorAttr,
        v: TensorAttr,
        *,
        bias: TensorAttr | None = None,
        attn_scale: TensorAttr | float | None = None,
        generate_stats: bool = False,
        causal_mask: bool = False,
        causal_mask_bottom_right: bool = False,
        diagonal_band_left_bound: int | None = None,
        diagonal_band_right_bound: int | None = None,
        diagonal_alignment: DiagonalAlignment = DiagonalAlignment.TOP_LEFT,
        padding_mask: bool = False,
        seq_len_q: TensorAttr | None = None,
        seq_len_kv: TensorAttr | None = None,
        sink_token: TensorAttr | None = None,
        logit_max: TensorAttr | None = None,
        score_sum_exp: TensorAttr | None = None,
        alibi_mask: bool = False,
        dropout_probability: float | None = None,
        mma_core_mode: DataType | None = None,
        implementation: AttentionImplementation = AttentionImplementation.AUTO,
        max_seq_len_kv: int | None = None,
        other_inputs: Mapping[str, TensorAttr] | None = None,
        other_outputs: Mapping[str, TensorAttr] | None = None,
        compute_data_type: DataType | None = None,
        name: str | None = None,
    ) -> SdpaOutputs:
        """Adds attention; see :class:`SdpaNode`.

        Args:
            q, k, v: [B, H, Sq, D], [B, Hk, Skv, D], [B, Hv, Skv, Dv].
            bias: added to the scores; -inf hides a key.
            attn_scale: a number, or a tensor of one element; default 1/sqrt(D).
            generate_stats: also make stats, FLOAT unless set otherwise: max + ln(sum of exp) of each row's scores.
            causal_mask, causal_mask_bottom_right, diagonal_band_left_bound, diagonal_band_right_bound,
                diagonal_alignment: which keys a query sees, see :class:`SdpaAttributes`.
            padding_mask, seq_len_q, seq_len_kv: lengths of each sequence of the batch, [B, 1, 1, 1].
            sink_token: one logit per head, [1, H, 1, 1].
            logit_max, score_sum_exp: tensors [B, H, Sq, 1] to write the parts of stats to.
            mma_core_mode, implementation: hints.
            alibi_mask, dropout_probability, max_seq_len_kv, other_inputs, other_outputs: what hipDNN knows besides, the
                tensors by port name of :class:`SdpaNode`; targets decline them.

        Returns:
            o, virtual until ``set_output(True)``, and stats or None.

        Raises:
            GraphError: options that exclude each other.
        """
        tensor_scale = attn_scale if isinstance(attn_scale, TensorAttr) else None
        attributes = SdpaAttributes(
            attn_scale_value=None if isinstance(attn_scale, TensorAttr) else attn_scale,
            generate_stats=generate_stats, padding_mask=padding_mask, causal_mask=causal_mask,
            causal_mask_bottom_right=causal_mask_bottom_right, left_bound=diagonal_band_left_bound,
            right_bound=diagonal_band_right_bound, diagonal_alignment=diagonal_alignment, alibi_mask=alibi_mask,
            dropout_probability=dropout_probability, max_seq_len_kv=max_seq_len_kv, mma_core_mode=mma_core_mode,
            implementation=implementation,
        )  # fmt: skip
        for what, others in (("other_inputs", other_inputs), ("other_outputs", other_outputs)):
            if others is not None and not isinstance(others, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise GraphError(f"sdpa: {what} must be tensors by the names of their ports, got {others!r:.200}")
        inputs = {
            "q": q, "k": k, "v": v, "attn_mask": bias, "scale": tensor_scale, "seq_len_q": seq_len_q,
            "seq_len_kv": seq_len_kv, "sink_token": sink_token, **(other_inputs or {}),
        }  # fmt: skip
        written = {"max": logit_max, "sum_exp": score_sum_exp, **(other_outputs or {})}
        node = self.add_node(
            SdpaNode, inputs, name=name, attributes=attributes, compute_data_type=compute_data_type,
            outputs={port: tensor for port, tensor in written.items() if tensor is not None},
            optional_outputs=("stats",) if attributes.generate_stats else (),
        )  # fmt: skip
        stats = node.outputs.get("stats")
        if stats is not None:
            stats.set_data_type(DataType.FLOAT)
        return SdpaOutputs(node.outputs["o"], stats)

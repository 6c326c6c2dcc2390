"""Scaled dot-product attention, forward: grouped heads, masks, windows, padding, pages, dropout by a mask, statistics.

Source of the semantics: hipDNN's SdpaAttributes and cuDNN's front end; without options it is
``torch.nn.functional.scaled_dot_product_attention``. Dropout by random numbers, whose result is not settled, can be
built and saved; it has no reference and targets decline it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Final, NamedTuple

from fusilli_ground.late_numpy import np
from graph_api.builder import GraphBuilder
from graph_api.dtypes import DataType
from graph_api.errors import GraphError
from graph_api.node import Array, Arrays, register_op
from graph_api.ops.attention import AttentionAttributes, AttentionNode, DiagonalAlignment
from graph_api.tensor import TensorAttr, flag, int_tuple

__all__ = ["BLOCK", "AttentionImplementation", "SdpaAttributes", "SdpaBuilder", "SdpaNode", "SdpaOutputs"]

BLOCK: Final = 128
"""Queries and keys of a block of a block mask."""


class AttentionImplementation(Enum):
    """A hint how to compute: as the engine likes, as separate steps, or as one kernel."""

    AUTO = "AUTO"
    COMPOSITE = "COMPOSITE"
    UNIFIED = "UNIFIED"


class SdpaOutputs(NamedTuple):
    """Results of :meth:`Graph.sdpa`; ``stats`` is None unless it was asked for."""

    o: TensorAttr
    stats: TensorAttr | None


@dataclass(frozen=True, kw_only=True)
class SdpaAttributes(AttentionAttributes):
    """Attributes of attention, under their names in hipDNN's schema; those of :class:`AttentionAttributes` and more.

    Attributes:
        generate_stats: write stats.
        max_seq_len_kv: how many keys pages hold, beside page tables.
        mma_core_mode: hint, the type of the matrix products. They are computed in the operands' types here, which is
            never less exact.
        implementation: hint.
    """

    OP: ClassVar[str] = "sdpa"

    generate_stats: bool = False
    max_seq_len_kv: int | None = None
    mma_core_mode: DataType | None = None
    implementation: AttentionImplementation = AttentionImplementation.AUTO

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "generate_stats", flag(self.generate_stats, "sdpa: generate_stats"))
        self.check_kind("implementation", AttentionImplementation)
        if self.mma_core_mode is not None and not isinstance(self.mma_core_mode, DataType):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GraphError(f"sdpa: mma_core_mode must be a DataType or None, got {self.mma_core_mode!r}")
        if self.max_seq_len_kv is not None:
            (length,) = int_tuple([self.max_seq_len_kv], "sdpa: max_seq_len_kv")
            if not 0 < length < 2**31:
                raise GraphError(f"sdpa: max_seq_len_kv must be a length of at least 1, got {self.max_seq_len_kv!r}")
            object.__setattr__(self, "max_seq_len_kv", length)


_DESCALES = ("descale_q", "descale_k", "descale_v")
_SCALES = ("descale_s", "scale_s", "scale_o")
_AMAXES = ("amax_s", "amax_o")


class _Softmax(NamedTuple):
    """Intermediate values, all [B, H, Sq, Skv] or [B, H, Sq, 1]: scores, exp(scores - max), max, sum."""

    scores: Array
    weights: Array
    max: Array
    sum: Array


@register_op
class SdpaNode(AttentionNode):
    """o = (dropout of softmax(scale * q k^T + attn_mask, where the window and the lengths allow)) v.

    Shapes:  q [B, H, Sq, D], k [B, Hk, Skv, D], v [B, Hv, Skv, Dv] -> o [B, H, Sq, Dv]; H is a multiple of Hk and of
             Hv, query head h uses key head h // (H / Hk); attn_mask and dropout_mask broadcast, right-aligned, to
             [B, H, Sq, Skv]; seq_len_q and seq_len_kv [B, 1, 1, 1]; scale and dropout_scale have one element;
             sink_token [1, H, 1, 1]; block_mask [B, H, ceil(Sq / 128), ceil(ceil(Skv / 128) / 8)]; stats, max, sum_exp
             [B, H, Sq, 1]; descale_q [1 or B, 1 or Hk or H, 1, 1], descale_k [1 or B, 1 or Hk, 1, 1], descale_v alike;
             other scales and amaxes have one element. With page_table_k [B, 1, N, 1], k is a container of pages
             [P, Hk, page, D], likewise v; Skv is then max_seq_len_kv, else the length of the other one, else what the
             tables hold
    Dtypes:  floating point; products and softmax accumulate in the compute type. The weights, at most 1 each, and
             q * scale may be rounded to the types of v and q. Lengths and page tables INT32 or INT64; block_mask UINT8
    Layout:  any strides; o takes the stride order of q unless it is set
    Rules:   padding_mask makes each sequence what it would be on its first seq_len_q queries and seq_len_kv keys; what
             lies behind them is never used, and their rows of o are 0. A row that sees no key, or only keys with mask
             -inf, is 0 too; its stats and max are -inf, its sum_exp 0. sink_token is one logit per head that takes part
             in max, in the sum of the weights and in stats, but has no value. Key j is row j % page of the page that
             entry j // page of its table names; numbers that name no page are clamped to the first or the last one, so
             that nothing outside a container is read. Weights, not their sum, are multiplied with dropout_mask *
             dropout_scale. alibi_mask adds slopes as :func:`alibi_slopes` has them. Bit n % 8 (of value 2**(n % 8)) of
             byte n // 8 of block_mask is set where 128 queries see the n-th 128 keys. q, k
             and v count times their descales, one number or one for each sequence and head; o is (weights * scale_s)
             v * descale_s, amax_s the largest weight of all and amax_o the largest magnitude of o, before o becomes
             o * scale_o. Weights * scale_s are not rounded to 8 bits, as engines do that multiply them in 8 bits:
             scale_s is for those, and descale_s its inverse
    Raises:  GraphError if shapes, types or options do not fit
    Source:  hipDNN SdpaAttributes and CpuReferenceSdpa; slopes, pages, blocks, dropout, and what a sink does to max and
             sum_exp: cuDNN's front end (attn_score_modifiers.h, scaled_dot_product_flash_attention.h) and its tests
             (sdpa/fp16_ref.py). 8 bits: cuDNN's front end (scaled_dot_product_flash_attention.h, matmul_fp8.h); its
             sdpa/fp8_ref.py rounds exp(scores - max) * scale_s where the front end rounds softmax * scale_s. hipDNN's
             CPU reference knows only masks, windows and groups of heads
    """

    op = "sdpa"
    attributes_type = SdpaAttributes
    attributes: SdpaAttributes
    input_ports = (
        "q", "k", "v", "attn_mask", "scale", "seq_len_q", "seq_len_kv", "sink_token", "seed", "offset",
        "dropout_mask", "dropout_scale", "page_table_k", "page_table_v", "block_mask", *_DESCALES, *_SCALES,
    )  # fmt: skip
    optional_inputs = input_ports[3:]
    output_ports = ("o", "stats", "max", "sum_exp", "rng_dump", *_AMAXES)
    optional_outputs = output_ports[1:]

    @property
    def score_dims(self) -> tuple[int, int, int, int]:
        """(B, H, Sq, Skv)."""
        q = self.inputs["q"].dims
        return (q[0], q[1], q[2], self._keys_there())

    def _keys_there(self) -> int:
        given = self.attributes.max_seq_len_kv
        if given is not None:
            return given
        plain = [port for port in ("k", "v") if not self.is_paged(port)]
        return self.inputs[plain[0]].dims[2] if plain else min(self.held("k"), self.held("v"))

    def is_paged(self, port: str) -> bool:
        """True if the operand is a container of pages, [pages, heads, page size, D]."""
        return f"page_table_{port}" in self.inputs

    def held(self, port: str) -> int:
        """How many keys the operand has for each sequence."""
        rows = self.inputs[port].dims[2]
        return rows * self.inputs[f"page_table_{port}"].dims[2] if self.is_paged(port) else rows

    @property
    def drops(self) -> bool:
        """True if weights are multiplied with a mask."""
        return "dropout_mask" in self.inputs

    def unsettled(self) -> str | None:
        """Which option has no defined result here, or None."""
        if self.attributes.alibi_mask and not self.has_settled_alibi:
            return "alibi_mask"
        if self.attributes.dropout_probability:
            return "dropout_probability"
        return "rng_dump" if "rng_dump" in self.outputs else None

    def validate(self) -> None:
        if not self.compute.is_float:
            self.compute = DataType.FLOAT
        self._check_pages()
        self.check_heads()
        self.check_floats("q", "k", "v", "attn_mask", "scale", "sink_token", "dropout_mask", "dropout_scale")
        self.check_floats(*_DESCALES, *_SCALES)
        self.check_scalars(*_SCALES)
        self._check_descales()
        self.check_like_scores("attn_mask")
        self.check_sequence_lengths()
        self.check_dropout()
        if ("stats" in self.outputs) != self.attributes.generate_stats:
            state = "an output" if "stats" in self.outputs else "no output"
            raise self.fail(f"generate_stats={self.attributes.generate_stats}, but stats is {state}")
        self.check_scale()
        self.check_dims("sink_token", (1, self.score_dims[1], 1, 1))
        self._check_blocks()

    def check_lengths_of_kv(self, q: Any, k: Any, v: Any) -> None:
        if not self.is_paged("k") and not self.is_paged("v"):
            super().check_lengths_of_kv(q, k, v)
            return
        for port in ("k", "v"):
            if not self.is_paged(port) and self.inputs[port].dims[0] != q[0]:
                raise self.fail(f"batch sizes differ: q {q}, {port} {self.inputs[port].dims}")
            if self.held(port) < self.score_dims[3]:
                raise self.fail(
                    f"{port} holds {self.held(port)} keys per sequence ({self._shown(port)}), fewer than the "
                    f"{self.score_dims[3]} of max_seq_len_kv or of the other operand"
                )

    def _shown(self, port: str) -> str:
        dims = self.inputs[port].dims
        return f"{dims}, page table {self.inputs[f'page_table_{port}'].dims}" if self.is_paged(port) else str(dims)

    def _check_pages(self) -> None:
        """Pages: [batch, 1, pages, 1] numbers of blocks in a container [pages, heads, page size, head size]."""
        tables = [f"page_table_{port}" for port in ("k", "v") if self.is_paged(port)]
        if not tables and self.attributes.max_seq_len_kv is not None:
            raise self.fail(
                f"max_seq_len_kv={self.attributes.max_seq_len_kv} says how many keys pages hold, and there are no page "
                "tables; leave it out, or give page_table_k and page_table_v"
            )
        q = self.inputs["q"]
        if tables and q.rank != 4:
            raise self.fail(f"q '{q.name}' must have dims [batch, heads, queries, head size], got {q.dims}")
        for port in tables:
            tensor, batch = self.inputs[port], q.dims[0]
            if tensor.rank != 4 or tensor.dims != (batch, 1, tensor.dims[2], 1):
                raise self.fail(f"{port} '{tensor.name}' must have dims ({batch}, 1, pages, 1), got {tensor.dims}")
            if tensor.data_type not in (DataType.INT32, DataType.INT64):
                raise self.fail(f"{port} '{tensor.name}' must be INT32 or INT64, got {tensor.data_type.name}")
            if self.inputs[port[-1]].rank != 4:
                raise self.fail(
                    f"{port[-1]} is a container of pages, [pages, heads, page size, head size], and has dims "
                    f"{self.inputs[port[-1]].dims}"
                )

    def _check_descales(self) -> None:
        q, k, v = (self.inputs[port].dims[1] for port in "qkv")
        for port, heads in zip(_DESCALES, ((1, k, q), (1, k), (1, v)), strict=True):
            tensor = self.inputs.get(port)
            if tensor is None:
                continue
            batches = (1,) if self.is_paged(port[-1]) else (1, self.score_dims[0])
            if tensor.rank == 4 and tensor.dims in {(b, h, 1, 1) for b in batches for h in heads}:
                continue
            batch, head = (" or ".join(map(str, dict.fromkeys(sizes))) for sizes in (batches, heads))
            raise self.fail(
                f"{port} '{tensor.name}' must have dims ({batch}, {head}, 1, 1), one factor or one for each sequence "
                f"and head, got {tensor.dims}"
            )

    def _check_blocks(self) -> None:
        blocks = self.inputs.get("block_mask")
        if blocks is None:
            return
        batch, heads, queries, keys = self.score_dims
        self.check_dims("block_mask", (batch, heads, -(-queries // BLOCK), -(-keys // (8 * BLOCK))))
        if blocks.data_type is not DataType.UINT8:
            raise self.fail(f"block_mask '{blocks.name}' must be UINT8, a bit a block, got {blocks.data_type.name}")

    def infer(self) -> None:
        b, h, sq, _ = self.score_dims
        q = self.inputs["q"]
        self.infer_output("o", (b, h, sq, self.inputs["v"].dims[3]), q)
        for port in ("stats", "max", "sum_exp"):
            if port in self.outputs:
                self.infer_output(port, (b, h, sq, 1), q)
                if not self.outputs[port].data_type.is_float:
                    raise self.fail(f"{port} must be floating point, got {self.outputs[port].data_type.name}")
        for port in ("rng_dump", *_AMAXES):
            if port in self.outputs:
                self.infer_output(port, self.score_dims if port == "rng_dump" else (1, 1, 1, 1), q)

    def flops(self) -> int:
        b, h, sq, skv = self.score_dims
        return 2 * b * h * sq * skv * (self.inputs["q"].dims[3] + self.inputs["v"].dims[3])

    def reference(self, inputs: Arrays) -> dict[str, Array]:
        option = self.unsettled()
        if option is not None:
            raise self.fail(f"{option} has no reference result: its meaning is not settled; leave it out")
        inputs = self._descaled(inputs)
        softmax = self._softmax(inputs)
        o, stats = self._attended(inputs, softmax), softmax.max + np.log(softmax.sum)
        weights = np.abs(softmax.weights * self.dropped(inputs)) / np.where(softmax.sum == 0, 1.0, softmax.sum)
        results = {"o": o * _one(inputs, "scale_o"), "stats": stats, "max": softmax.max, "sum_exp": softmax.sum}
        results |= {"amax_s": _largest(weights), "amax_o": _largest(np.abs(o))}
        return {port: results[port] for port in self.outputs}

    def _attended(self, inputs: Arrays, softmax: _Softmax) -> Array:
        """o before scale_o, of descaled operands."""
        weights = softmax.weights * self.dropped(inputs)
        o = weights @ self._gathered(inputs, "v", inputs["v"]) / np.where(softmax.sum == 0, 1.0, softmax.sum)
        o = np.where(softmax.max == -np.inf, 0.0, o)
        return o * _one(inputs, "scale_s") * _one(inputs, "descale_s")

    def _descaled(self, inputs: Arrays) -> Arrays:
        """The operands times their factors."""
        made = dict(inputs)
        for port in _DESCALES:
            if port in inputs:
                made[port[-1]] = inputs[port[-1]] * self._factors(port, inputs[port])
        return made

    def _factors(self, port: str, factors: Array) -> Array:
        """Of an operand that may have more heads than there are factors."""
        heads = self.inputs[port[-1]].dims[1]
        return np.repeat(factors, heads // factors.shape[1], axis=1) if factors.shape[1] > 1 else factors

    def _softmax(self, inputs: Arrays) -> _Softmax:
        scores = self.scores(inputs, inputs["q"], self._gathered(inputs, "k", inputs["k"]))
        top = np.max(scores, axis=3, keepdims=True)
        sink = inputs.get("sink_token")
        # With a sink the largest logit may be the sink's; the largest of both keeps every exponential at most 1.
        shift = top if sink is None else np.maximum(top, sink)
        weights = np.exp(scores - np.where(shift == -np.inf, 0.0, shift))
        total = np.sum(weights, axis=3, keepdims=True)
        if sink is not None:
            total = total + np.exp(sink - np.where(shift == -np.inf, 0.0, shift))
        return _Softmax(scores, weights, shift, total)

    def _gathered(self, inputs: Arrays, port: str, x: Array) -> Array:
        """k or v, or an array of its dims, [B, H, Skv, D]: pages in their order, zeros behind the lengths."""
        keys = self.score_dims[3]
        if self.is_paged(port):
            table = inputs[f"page_table_{port}"]
            pages = x[np.clip(table[:, 0, :, 0], 0, x.shape[0] - 1).astype(np.int64)]
            x = np.swapaxes(pages, 1, 2).reshape(table.shape[0], x.shape[1], -1, x.shape[3])
        return self.within(inputs, "seq_len_kv", self.repeated(x[:, :, :keys]))

    def visible(self, inputs: Arrays) -> np.ndarray[Any, np.dtype[np.bool_]]:
        seen = super().visible(inputs)
        if "block_mask" not in inputs:
            return seen
        _, _, sq, skv = self.score_dims
        row, column = np.arange(sq)[:, None] // BLOCK, np.arange(skv)[None, :] // BLOCK
        blocks = inputs["block_mask"].astype(np.int64)[:, :, row, column // 8]
        return seen & ((blocks >> (column % 8)) % 2 == 1)

    def error_of(self, port: str, errors: Arrays) -> Array:
        if not self.is_paged(port):
            return super().error_of(port, errors)
        batch, heads, _, keys = self.score_dims
        return np.full((batch, heads, keys, self.inputs[port].dims[3]), np.max(errors[port]))

    def error(self, inputs: Arrays, errors: Arrays, outputs: Arrays) -> dict[str, Array]:
        errors, inputs = self._descaled_errors(inputs, errors), self._descaled(inputs)
        softmax = self._softmax(inputs)
        eps = self.compute.eps
        dead = softmax.max == -np.inf
        total = np.where(softmax.sum == 0, 1.0, softmax.sum)
        d_scores = np.where(softmax.scores == -np.inf, 0.0, self._exponent_error(inputs, errors, softmax))
        weights = softmax.weights / total
        d_sum = np.sum(weights * np.expm1(np.minimum(d_scores, 50.0)), axis=3, keepdims=True)
        d_max = np.max(d_scores, axis=3, keepdims=True)
        terms = softmax.scores.shape[3]
        magnitude = np.abs(np.where(dead, 0.0, softmax.max)) + np.abs(np.log(total))
        o = self._attended(inputs, softmax)
        d_o = self._output_error(inputs, errors, o, softmax, weights, d_scores)
        kept = weights * np.abs(self.dropped(inputs))
        d_kept = kept * (np.expm1(np.minimum(d_scores, 50.0)) + d_sum + self.sum_gamma(terms) + 8.0 * eps)
        bounds = {
            "o": _scaled_error(inputs, errors, ("scale_o",), o, d_o, eps),
            "amax_s": _largest(d_kept),
            "amax_o": _largest(d_o),
            "stats": np.where(dead, 0.0, d_sum + self.sum_gamma(terms) + 8.0 * eps * (1.0 + magnitude)),
            "max": np.where(dead, 0.0, d_max),
            "sum_exp": softmax.sum * (d_sum + np.expm1(np.minimum(d_max, 50.0)) + self.sum_gamma(terms)),
        }
        return {port: bounds[port] for port in self.outputs}

    def _descaled_errors(self, inputs: Arrays, errors: Arrays) -> Arrays:
        """What the products of operands and their factors are off by."""
        made = dict(errors)
        for port in _DESCALES:
            if port in inputs:
                x, factors = inputs[port[-1]], self._factors(port, inputs[port])
                off = self._factors(port, np.broadcast_to(errors[port], inputs[port].shape))
                made[port[-1]] = np.abs(x) * (off + 2.0 * self.compute.eps * np.abs(factors))
                made[port[-1]] = made[port[-1]] + errors[port[-1]] * np.abs(factors)
        return made

    def _exponent_error(self, inputs: Arrays, errors: Arrays, softmax: _Softmax) -> Array:
        """Error of scores - max, the argument of the exponential, and of the exponential itself."""
        eps = self.compute.eps
        bound = self.score_error(inputs, errors, inputs["q"], self._gathered(inputs, "k", inputs["k"]))
        if "sink_token" in inputs:
            bound = bound + errors["sink_token"] + eps * np.abs(inputs["sink_token"])
        top = np.where(np.isfinite(softmax.max), softmax.max, 0.0)
        distance = np.where(np.isfinite(softmax.scores), np.abs(softmax.scores) + np.abs(softmax.scores - top), 0.0)
        return bound + 4.0 * eps * distance + 16.0 * eps

    def _output_error(
        self, inputs: Arrays, errors: Arrays, o: Array, softmax: _Softmax, weights: Array, d_scores: Array
    ) -> Array:
        """``moved``: what of each weight, or of its part in the sum, is wrong."""
        values, kept = np.abs(self._gathered(inputs, "v", inputs["v"])), np.abs(self.dropped(inputs))
        shown = softmax.weights * kept
        relative = np.expm1(np.minimum(d_scores, 50.0))
        lost = self.rounding(self.inputs["v"], shown) / np.where(softmax.sum == 0, 1.0, softmax.sum)
        moved = weights * kept * (relative + (4.0 * self.compute.eps if self.drops else 0.0)) + lost
        in_sum = weights * relative + lost
        sums = self.gamma(softmax.scores.shape[3]) + 4.0 * self.compute.eps
        between = np.abs(_one(inputs, "scale_s") * _one(inputs, "descale_s"))
        plain = np.abs(o) / np.where(between == 0, 1.0, between)
        bound = moved @ values + np.sum(in_sum, axis=3, keepdims=True) * plain
        bound = bound + sums * ((weights * kept) @ values + plain)
        for port in ("dropout_mask", "dropout_scale"):
            if port in inputs and np.any(errors[port]):
                others = {p: inputs[p] for p in ("dropout_mask", "dropout_scale") if p in inputs} | {port: errors[port]}
                bound = bound + (weights * np.abs(self.dropped({**inputs, **others}))) @ values
        if np.any(errors["v"]):
            bound = bound + (weights * kept) @ np.broadcast_to(self.error_of("v", errors), values.shape)
        bound = _scaled_error(inputs, errors, ("scale_s", "descale_s"), plain, bound, self.compute.eps)
        return np.where(softmax.max == -np.inf, 0.0, bound)


def _one(inputs: Arrays, port: str) -> float:
    """The number at a port of one element, 1 where there is none."""
    return float(inputs[port].ravel()[0]) if port in inputs else 1.0


def _largest(values: Array) -> Array:
    return np.max(values).reshape(1, 1, 1, 1)


def _scaled_error(
    inputs: Arrays, errors: Arrays, ports: tuple[str, ...], values: Array, bound: Array, eps: float
) -> Array:
    """The error of values that are multiplied with the numbers at ports, of their own one."""
    for port in ports:
        if port in inputs:
            factor, off = abs(_one(inputs, port)), float(np.max(errors[port]))
            bound = bound * factor + np.abs(values) * (off + 2.0 * eps * factor)
            values = values * factor
    return bound


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
        dropout_mask: TensorAttr | None = None,
        dropout_scale: TensorAttr | None = None,
        page_table_k: TensorAttr | None = None,
        page_table_v: TensorAttr | None = None,
        block_mask: TensorAttr | None = None,
        descale_q: TensorAttr | None = None,
        descale_k: TensorAttr | None = None,
        descale_v: TensorAttr | None = None,
        descale_s: TensorAttr | None = None,
        scale_s: TensorAttr | None = None,
        scale_o: TensorAttr | None = None,
        amax_s: TensorAttr | None = None,
        amax_o: TensorAttr | None = None,
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
            alibi_mask: add slope * (j - i) to the score of query i and key j, with a slope per head; served with a
                right bound of 0 at the top left.
            dropout_mask, dropout_scale: what weights are multiplied with: broadcast to the scores, and one element.
            page_table_k, page_table_v, max_seq_len_kv: [B, 1, N, 1], the pages of each sequence; k or v is then
                [pages, heads, page size, head size].
            block_mask: a bit for each 128 queries and 128 keys, see :class:`SdpaNode`.
            descale_q, descale_k, descale_v, descale_s, scale_s, scale_o: factors of operands, weights and o that are in
                8 bits.
            amax_s, amax_o: tensors of one element to write the largest weight and the largest magnitude of o to.
            mma_core_mode, implementation: hints.
            dropout_probability, other_inputs, other_outputs: what hipDNN knows besides, the tensors by port name of
                :class:`SdpaNode`; targets decline them.

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
            "seq_len_kv": seq_len_kv, "sink_token": sink_token, "dropout_mask": dropout_mask,
            "dropout_scale": dropout_scale, "page_table_k": page_table_k, "page_table_v": page_table_v,
            "block_mask": block_mask, "descale_q": descale_q, "descale_k": descale_k, "descale_v": descale_v,
            "descale_s": descale_s, "scale_s": scale_s, "scale_o": scale_o, **(other_inputs or {}),
        }  # fmt: skip
        written = {"max": logit_max, "sum_exp": score_sum_exp, "amax_s": amax_s, "amax_o": amax_o}
        written |= other_outputs or {}
        node = self.add_node(
            SdpaNode, inputs, name=name, attributes=attributes, compute_data_type=compute_data_type,
            outputs={port: tensor for port, tensor in written.items() if tensor is not None},
            optional_outputs=("stats",) if attributes.generate_stats else (),
        )  # fmt: skip
        stats = node.outputs.get("stats")
        if stats is not None:
            stats.set_data_type(DataType.FLOAT)
        return SdpaOutputs(node.outputs["o"], stats)

"""What both directions of attention share: which scores there are, which of them a query sees, and their errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Final, NamedTuple, cast

from fusilli_ground.late_numpy import np
from graph_api.dtypes import DataType
from graph_api.errors import GraphError
from graph_api.node import Array, Arrays, Attributes, Node
from graph_api.tensor import TensorAttr, flag, int_tuple

__all__ = ["AttentionAttributes", "AttentionNode", "DiagonalAlignment", "Window", "alibi_slopes"]

Dims4 = tuple[int, int, int, int]
_NO_BOUND: Final = -1
"""How hipDNN's graphs write a window without a bound on one side."""
_FLAGS: Final = ("padding_mask", "causal_mask", "causal_mask_bottom_right", "alibi_mask")


class DiagonalAlignment(Enum):
    """Where the diagonal of a window starts: at the first query and key, or so that it ends at the last of both."""

    TOP_LEFT = "TOP_LEFT"
    BOTTOM_RIGHT = "BOTTOM_RIGHT"


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


@dataclass(frozen=True, kw_only=True)
class AttentionAttributes(Attributes):
    """Attributes of both directions, under their names in hipDNN's schema.

    Attributes:
        attn_scale_value: factor on q k^T; default 1/sqrt(D).
        padding_mask: sequences are as long as seq_len_q and seq_len_kv say.
        causal_mask, causal_mask_bottom_right: older spellings of a right bound of 0, aligned at the top left or at the
            bottom right. A left bound beside them makes a sliding window, in the newer spelling from then on; a right
            bound other than 0, or another alignment, contradicts them.
        left_bound, right_bound, diagonal_alignment: see :class:`Window`; -1 is no bound, and becomes None.
        alibi_mask: a linear bias per head, see :func:`alibi_slopes`.
        dropout_probability: of attention weights, 0 for none.
    """

    OP: ClassVar[str]

    attn_scale_value: float | None = None
    padding_mask: bool = False
    causal_mask: bool = False
    causal_mask_bottom_right: bool = False
    left_bound: int | None = None
    right_bound: int | None = None
    diagonal_alignment: DiagonalAlignment = DiagonalAlignment.TOP_LEFT
    alibi_mask: bool = False
    dropout_probability: float | None = None

    def __post_init__(self) -> None:
        for field in _FLAGS:
            object.__setattr__(self, field, flag(getattr(self, field), f"{self.OP}: {field}"))
        self._check_numbers()
        self.check_kind("diagonal_alignment", DiagonalAlignment)
        self._settle_window()

    def check_kind(self, field: str, kind: type[Enum]) -> None:
        """Refuse a value that is no member of ``kind``."""
        if not isinstance(getattr(self, field), kind):
            raise GraphError(f"{self.OP}: {field} must be a {kind.__name__}, got {getattr(self, field)!r}")

    def _check_numbers(self) -> None:
        """Numbers become Python's own: JSON has no others, and True would count as 1."""
        for field in ("attn_scale_value", "dropout_probability"):
            value = getattr(self, field)
            if value is None:
                continue
            number = float(cast("float", value)) if isinstance(value, int | float | np.floating) else math.nan
            if isinstance(value, bool) or not math.isfinite(number):
                raise GraphError(f"{self.OP}: {field} must be a finite number, got {value!r}")
            object.__setattr__(self, field, number)
        if not 0.0 <= (self.dropout_probability or 0.0) < 1.0:
            raise GraphError(f"{self.OP}: dropout_probability {self.dropout_probability} is outside 0 <= p < 1")
        for field in ("left_bound", "right_bound"):
            value = getattr(self, field)
            if value is None:
                continue
            (number,) = int_tuple([value], f"{self.OP}: {field}")
            if not _NO_BOUND <= number < 2**63:
                raise GraphError(
                    f"{self.OP}: {field} {value!r} is no distance: it must be 0 or more, or -1 (or None) for no bound"
                )
            object.__setattr__(self, field, None if number == _NO_BOUND else number)

    def _settle_window(self) -> None:
        """One spelling for each window: a causal flag stands alone.

        Beside a left bound the flag becomes what it means, because versions of hipDNN read the pair differently.
        """
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
            raise GraphError(f"{self.OP}: causal_mask and causal_mask_bottom_right exclude each other; set one")
        flag = "causal_mask" if self.causal_mask else "causal_mask_bottom_right"
        if self.right_bound not in (None, 0):
            raise GraphError(
                f"{self.OP}: {flag} is a right bound of 0, and right_bound is {self.right_bound}; leave one of them out"
            )
        if self.causal_mask and self.diagonal_alignment is DiagonalAlignment.BOTTOM_RIGHT:
            raise GraphError(
                f"{self.OP}: causal_mask is aligned at the top left, and diagonal_alignment is BOTTOM_RIGHT; set "
                "causal_mask_bottom_right, or a right bound of 0 instead of causal_mask"
            )

    @property
    def window(self) -> Window:
        """The window that flags, bounds and alignment say together."""
        if self.causal_mask or self.causal_mask_bottom_right:
            return Window(self.causal_mask_bottom_right, None, 0)
        left, right = _distance(self.left_bound), _distance(self.right_bound)
        return Window(self.diagonal_alignment is DiagonalAlignment.BOTTOM_RIGHT, left, right)


def _distance(bound: int | None) -> int | None:
    """A bound in tokens; None: no bound. Beyond any dim it changes nothing, and positions stay within 64 bits."""
    return None if bound is None else min(bound, 2**40)


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """The slope of each query head: the score of query i and key j has slope * (j - i) added.

    A geometric sequence for the largest power of two n of heads, 2**(-8/n) and its powers; heads beyond it take every
    second of the sequence of 2 n. That is cuDNN's front end and its tests; hipDNN's sources have the flag alone.
    """
    whole = 1 << (heads.bit_length() - 1)
    exponents = [*range(1, whole + 1), *(0.5 * step for step in range(1, 2 * (heads - whole), 2))]
    return tuple(2.0 ** (-8.0 * exponent / whole) for exponent in exponents)


class AttentionNode(Node):
    """Scores of queries and keys: scale * q k^T plus biases, -inf where a query does not see a key."""

    @property
    def masking(self) -> AttentionAttributes:
        """What the attributes of both directions share."""
        return cast("AttentionAttributes", self.attributes)

    @property
    def score_dims(self) -> Dims4:
        """(B, H, Sq, Skv)."""
        q = self.inputs["q"].dims
        return (q[0], q[1], q[2], self.inputs["k"].dims[2])

    @property
    def constant_scale(self) -> float | None:
        """The factor on q k^T, or None if it is only known when the graph runs."""
        tensor = self.inputs.get("scale")
        if tensor is None:
            value = self.masking.attn_scale_value
            return 1.0 / math.sqrt(self.inputs["q"].dims[3]) if value is None else value
        return None if tensor.value is None else float(np.asarray(tensor.value).astype(tensor.data_type.numpy))

    @property
    def has_settled_alibi(self) -> bool:
        """Whether the sources agree on what is added: on the keys up to the query, counted from the first ones.

        For keys behind the query some have slope * (j - i) and some its negative; for windows that end at the last
        query and key some count from there.
        """
        window = self.masking.window
        return window.right == 0 and not window.bottom_right

    # ---- what the user got wrong ----------------------------------------------------------------------------------

    def check_heads(self) -> None:
        """Ranks, heads and sizes of q, k and v."""
        q, k, v = (self.inputs[port].dims for port in ("q", "k", "v"))
        shown = f"q {q}, k {k}, v {v}"
        if not len(q) == len(k) == len(v) == 4:
            raise self.fail(f"q, k and v need rank 4, [batch, heads, sequence, head size]; got {shown}")
        self.check_lengths_of_kv(q, k, v)
        if q[1] % k[1] or q[1] % v[1]:
            raise self.fail(f"the {q[1]} heads of q must be a multiple of those of k and of v: {shown}")
        if q[3] != k[3]:
            raise self.fail(f"head sizes of q and k differ: {shown}")

    def check_lengths_of_kv(self, q: Sequence[int], k: Sequence[int], v: Sequence[int]) -> None:
        """Batches and lengths of k and v."""
        shown = f"q {q}, k {k}, v {v}"
        if not q[0] == k[0] == v[0]:
            raise self.fail(f"batch sizes differ: {shown}; containers of pages need their page tables")
        if k[2] != v[2]:
            raise self.fail(f"sequence lengths of k and v differ: {shown}")

    def check_floats(self, *ports: str) -> None:
        """Types of operands that are numbers."""
        for port in ports:
            tensor = self.inputs.get(port)
            if tensor is not None and not tensor.data_type.is_float:
                added = "; it is added to the scores: make 0 and -inf of it with BINARY_SELECT"
                hint = added if port == "attn_mask" else ""
                raise self.fail(f"{port} '{tensor.name}' must be floating point, got {tensor.data_type.name}{hint}")

    def check_dims(self, port: str, dims: Sequence[int]) -> None:
        """An input, if it is there, of exactly these dims."""
        tensor = self.inputs.get(port)
        if tensor is not None and tensor.dims != tuple(dims):
            raise self.fail(f"{port} '{tensor.name}' must have dims {tuple(dims)}, got {tensor.dims}")

    def check_like_scores(self, *ports: str) -> None:
        """Inputs that broadcast to the scores."""
        for port in ports:
            tensor = self.inputs.get(port)
            if tensor is None:
                continue
            fits = all(m in (1, s) for m, s in zip(reversed(tensor.dims), reversed(self.score_dims), strict=False))
            if tensor.rank > 4 or not fits:
                raise self.fail(
                    f"{port} '{tensor.name}' {tensor.dims} does not broadcast to the scores {self.score_dims}"
                )

    def check_scalars(self, *ports: str) -> None:
        """Inputs of one element."""
        for port in ports:
            tensor = self.inputs.get(port)
            if tensor is not None and tensor.volume != 1:
                raise self.fail(f"{port} '{tensor.name}' must have 1 element, got dims {tensor.dims}")

    def check_scale(self) -> None:
        """One factor on the scores."""
        scale = self.inputs.get("scale")
        if scale is not None and (scale.volume != 1 or self.masking.attn_scale_value is not None):
            raise self.fail(
                f"give one scale: attn_scale_value, or a tensor of 1 element; '{scale.name}' is {scale.dims}"
            )

    def check_sequence_lengths(self) -> None:
        """The lengths belong to padding_mask."""
        for port in ("seq_len_q", "seq_len_kv"):
            tensor = self.inputs.get(port)
            if (tensor is not None) != self.masking.padding_mask:
                state = "given" if tensor is not None else "missing"
                raise self.fail(f"padding_mask={self.masking.padding_mask} and {port} is {state}; they belong together")
            if tensor is None:
                continue
            self.check_dims(port, (self.score_dims[0], 1, 1, 1))
            if tensor.data_type not in (DataType.INT32, DataType.INT64):
                raise self.fail(f"{port} '{tensor.name}' must be INT32 or INT64, got {tensor.data_type.name}")

    def check_dropout(self) -> None:
        """One kind of dropout, complete."""
        p, mask = self.masking.dropout_probability, self.inputs.get("dropout_mask")
        if mask is not None and p:
            raise self.fail(f"dropout_probability={p} and dropout_mask '{mask.name}' exclude each other; give one")
        for port in ("dropout_scale", "dropout_scale_inv"):
            if port in self.inputs and mask is None and not p:
                raise self.fail(f"{port} '{self.inputs[port].name}' is given without dropout_mask; it belongs to one")
        self.check_like_scores("dropout_mask")
        self.check_scalars("dropout_scale", "dropout_scale_inv")

    # ---- the reference --------------------------------------------------------------------------------------------

    def scale_of(self, inputs: Arrays) -> float:
        """The factor on q k^T."""
        constant = self.constant_scale
        return float(inputs["scale"].ravel()[0]) if constant is None else constant

    def repeated(self, x: Array) -> Array:
        """One head per query head."""
        return np.repeat(x, self.score_dims[1] // x.shape[1], axis=1)

    def within(self, inputs: Arrays, port: str, x: Array) -> Array:
        """[B, H, S, D] with zeros behind the lengths at ``port``; what stands there may be NaN."""
        if not self.masking.padding_mask:
            return x
        positions: Array = np.arange(float(x.shape[2])).reshape(1, 1, -1, 1)
        return np.where(positions < inputs[port], x, 0.0)

    def scores(self, inputs: Arrays, q: Array, k: Array) -> Array:
        """What the softmax is taken of; k has a head per query head."""
        scores = self.scale_of(inputs) * (q @ np.swapaxes(k, 2, 3))
        return np.where(self.visible(inputs), scores + self._bias(inputs), -np.inf)

    def _bias(self, inputs: Arrays) -> Array:
        added: Array = np.zeros((1, 1, 1, 1))
        if "attn_mask" in inputs:
            added = added + inputs["attn_mask"]
        return added + self._alibi() if self.masking.alibi_mask else added

    def _alibi(self) -> Array:
        _, heads, sq, skv = self.score_dims
        distance: Array = np.arange(float(skv))[None, :] - np.arange(float(sq))[:, None]
        return np.array(alibi_slopes(heads)).reshape(1, -1, 1, 1) * distance

    def visible(self, inputs: Arrays) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which query sees which key, by window and lengths: booleans that broadcast to the scores."""
        _, _, sq, skv = self.score_dims
        i, j = np.arange(sq)[:, None], np.arange(skv)[None, :]
        lengths = (inputs["seq_len_q"], inputs["seq_len_kv"]) if self.masking.padding_mask else (sq, skv)
        window = self.masking.window
        diagonal = i + (lengths[1] - lengths[0] if window.bottom_right else 0)
        allowed = (i < lengths[0]) & (j < lengths[1])
        if window.right is not None:
            allowed = allowed & (j <= diagonal + window.right)
        if window.left is not None:
            allowed = allowed & (j >= diagonal - window.left)
        return allowed

    def dropped(self, inputs: Arrays) -> Array:
        """What weights are multiplied with: mask and scale of a dropout, or 1."""
        if "dropout_mask" not in inputs:
            return np.ones((1, 1, 1, 1))
        scale = inputs["dropout_scale"].ravel()[0] if "dropout_scale" in inputs else 1.0
        return inputs["dropout_mask"] * scale

    # ---- errors ---------------------------------------------------------------------------------------------------

    def score_error(self, inputs: Arrays, errors: Arrays, q: Array, k: Array) -> Array:
        """Bound of the absolute error of the scores; k has a head per query head."""
        q, k = np.abs(q), np.abs(np.swapaxes(k, 2, 3))
        eps, terms, scale = self.compute.eps, q.shape[3], abs(self.scale_of(inputs))
        operand = max(self.multiplied(self.inputs[port]).eps for port in ("q", "k"))
        bound = scale * (self.gamma(terms) + 4.0 * eps) * (q @ k)
        if operand > eps:
            # q * scale and then q * scale * log2(e) may be rounded to q's type, in which the matrix unit takes it. Two
            # uniform errors per product: their sum is within 4 of its deviations, and never above the sum of all.
            bound = bound + scale * operand * np.minimum(4.0 / math.sqrt(6.0) * np.sqrt((q * q) @ (k * k)), q @ k)
        if np.any(errors["q"]):
            bound = bound + scale * (np.broadcast_to(errors["q"], q.shape) @ k)
        if np.any(errors["k"]):
            bound = bound + scale * (q @ np.swapaxes(self.error_of("k", errors), 2, 3))
        if "scale" in inputs:
            bound = bound + (errors["scale"].ravel()[0] + eps * scale) * (q @ k)
        if "attn_mask" in inputs:
            mask = np.where(np.isfinite(inputs["attn_mask"]), np.abs(inputs["attn_mask"]), 0.0)
            bound = bound + 2.0 * eps * mask + errors["attn_mask"]
        if self.masking.alibi_mask:
            bound = bound + 12.0 * eps * np.abs(self._alibi())
        return bound

    def error_of(self, port: str, errors: Arrays) -> Array:
        """An error of k or v, with a head per query head."""
        return self.repeated(np.broadcast_to(errors[port], self.inputs[port].dims))

    def multiplied(self, tensor: TensorAttr) -> DataType:
        """The type in which an operand takes part in products: its own, or BFLOAT16, which holds smaller floats."""
        return DataType.BFLOAT16 if tensor.data_type.is_small_float else tensor.data_type

    def rounding(self, tensor: TensorAttr, values: Array) -> Array:
        """What a product loses of an operand that is rounded to the type of ``tensor``, its other operand.

        Matrix units flush what is below the type's normal range to zero.
        """
        kind = self.multiplied(tensor)
        if kind.eps <= self.compute.eps:
            return np.zeros(())
        size = np.abs(values)
        smallest = float(kind.finfo.smallest_normal)
        return 0.5 * kind.eps * size + np.where(size < smallest, size, 0.0)

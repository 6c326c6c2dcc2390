"""Random nodes of com.microsoft with weights in blocks, over what their attributes may say, with float64 results."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from onnx import helper

from tests.support.onnx_rewritten import one_node

__all__ = ["DOMAIN", "FLOATS", "experts", "product", "table"]

DOMAIN = "com.microsoft"
Array = np.ndarray[Any, Any]


def _pack(codes: Array, bits: int) -> Array:
    """Codes along the last axis, the first in the lowest bits; the last byte may have bits that nobody reads."""
    per = 8 // bits
    rest = -codes.shape[-1] % per
    wide = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, rest)]).reshape(*codes.shape[:-1], -1, per)
    return np.bitwise_or.reduce(wide.astype(np.uint8) << (bits * np.arange(per, dtype=np.uint8)), axis=-1)


def _codes(random: np.random.Generator, bits: int, *dims: int) -> Array:
    return random.integers(0, 1 << bits, dims).astype(np.uint8)


def _chance(random: np.random.Generator, *values: Any) -> Any:
    return values[random.integers(len(values))]


# ---- MatMulNBits


def product(seed: int, dtype: Any = None) -> tuple[Any, dict[str, Array], Array, float]:
    """A random node, its feeds, the result in float64, and how far off single or half precision may be."""
    random = np.random.default_rng(seed)
    bits, size = _chance(random, 2, 4, 8), _chance(random, 16, 32, 64, 128)
    k, n = int(random.integers(1, 150)), int(random.integers(1, 40))
    if dtype is None:
        dtype = _chance(random, np.float32, np.float32, np.float16)
    blocks = -(-k // size)
    a = random.standard_normal((*_chance(random, (3,), (2, 3), (1,), (2, 1, 2)), k)).astype(dtype)
    codes = _codes(random, bits, n, blocks, size)
    scales = (random.random((n, blocks)) * 0.2 - 0.1).astype(dtype)
    inputs: dict[str, Any] = {"a": a, "b": _pack(codes, bits), "s": scales, "z": None, "g": None, "bias": None}
    zero: Array = np.full((n, blocks), 1 << (bits - 1))
    form = random.integers(3)
    if form == 1:
        zero = _codes(random, bits, n, blocks)
        inputs["z"] = _pack(zero, bits)
    elif form == 2:
        zero = (random.random((n, blocks)) * (1 << bits)).astype(dtype)
        inputs["z"] = zero
    group = np.arange(k) // size
    if random.integers(3) == 0 and bits != 2 and form != 1:
        group = random.integers(0, blocks, k)
        inputs["g"] = group.astype(np.int32)
        if random.integers(2):
            inputs["g"] = np.concatenate([inputs["g"], np.zeros(blocks * size - k, np.int32)])
    if random.integers(2):
        inputs["bias"] = random.standard_normal(n).astype(dtype)
    if random.integers(2):  # as older models have them
        for name in ("s", "z"):
            inputs[name] = None if inputs[name] is None else inputs[name].reshape(-1)
    given = {"K": k, "N": n, "bits": bits, "block_size": size, "accuracy_level": _chance(random, 0, 1)}
    wide = codes.reshape(n, -1)[:, :k].astype(np.float64) - zero.astype(np.float64)[:, group]
    weights = wide * scales.astype(np.float64)[:, group]
    expected = a.astype(np.float64) @ weights.T
    size_of = np.abs(a.astype(np.float64)) @ np.abs(weights).T
    if inputs["bias"] is not None:
        expected = expected + inputs["bias"]
    fed = ["a", *(["s"] if random.integers(2) else [])]
    constants = [name for name, value in inputs.items() if value is not None and name not in fed]
    model, feeds = one_node("MatMulNBits", inputs, {"y": dtype}, constants=constants, domain=DOMAIN, **given)
    unit = float(ml_dtypes.finfo(dtype).eps)
    bound = float((size_of * k * 2.0**-23).max() + (np.abs(expected) * unit).max() + 1e-6)
    return model, feeds, expected, bound


# ---- GatherBlockQuantized

_TYPED = (ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float4_e2m1fn)
_TYPED += (ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz)
FLOATS = {helper.np_dtype_to_tensor_dtype(np.dtype(each)) for each in _TYPED[2:]}


def table(seed: int) -> tuple[Any, dict[str, Array], Array]:
    """A random node, its feeds, and the result in float64."""
    random = np.random.default_rng(seed)
    kind = _chance(random, None, None, *_TYPED)
    rank = int(random.integers(2, 4))
    size = _chance(random, 16, 32)
    dims = [int(random.integers(1, 6)) for _ in range(rank)]
    axis = 0 if kind is None else int(random.integers(rank))
    along = rank - 1 if kind is None else int(random.integers(rank))
    bits = _chance(random, 2, 4, 8) if kind is None else 4
    dims[along] = int(random.integers(1, 5)) * 16 + (8 if kind is None else int(random.integers(1, 16)))
    is_float = kind is not None and "float" in np.dtype(kind).name
    if is_float and random.integers(4) == 0:
        size = 0
    blocks = [-(-dim // (size or dim)) if at == along else dim for at, dim in enumerate(dims)]
    if is_float and random.integers(3) == 0:
        at = int(random.integers(rank))
        blocks[at] = 1 if at != along else blocks[at]
    scales = (random.random(blocks) + 0.1).astype(_chance(random, np.float32, np.float16))
    zero: Any = 0
    inputs: dict[str, Any]
    given: dict[str, Any] = {"gather_axis": _chance(random, axis, axis - rank)}
    if kind is None:
        values = _codes(random, bits, *dims)
        data, zero = _pack(values, bits), 1 << (bits - 1)
        zeros = _codes(random, bits, *blocks)
        packed_zeros, given["bits"] = _pack(zeros, bits), bits
    else:
        values = data = _codes(random, np.dtype(kind).itemsize * 8, *dims).view(kind)
        if np.dtype(kind).name in ("int4", "uint4", "float4_e2m1fn"):
            values = data = (data.view(np.uint8) & 15).view(kind)
        packed_zeros = zeros = (_codes(random, 4, *blocks)).view(kind if not is_float else ml_dtypes.int4)
    indices = random.integers(-dims[axis], dims[axis], _chance(random, (), (4,), (2, 3)))
    if indices.ndim and random.integers(2):
        indices.flat[0] = _chance(random, dims[axis], -dims[axis] - 1, 1000)
    inputs = {"d": data, "i": indices.astype(_chance(random, np.int32, np.int64)), "s": scales, "z": None}
    if not is_float and random.integers(2):
        inputs["z"], zero = packed_zeros, zeros
    wide = values.astype(np.float64)
    spread = [np.repeat(np.broadcast_to(np.asarray(each, np.float64), blocks), size or dims[along], along)
              .take(np.arange(dims[along]), along) for each in (scales, zero)]  # fmt: skip
    whole = np.broadcast_to((wide - spread[1]) * spread[0], dims)
    inside = (indices >= -dims[axis]) & (indices < dims[axis])
    expected = np.take(whole, np.where(inside, indices, 0), axis)
    expected = np.where(inside.reshape(*[1] * axis, *indices.shape, *[1] * (rank - 1 - axis)), expected, 0)
    given |= {"quantize_axis": _chance(random, along, along - rank), "block_size": size}
    constants = [
        name for name, value in inputs.items() if value is not None and (name != "i" or random.integers(3) == 0)
    ]
    model, feeds = one_node(
        "GatherBlockQuantized", inputs, {"y": scales.dtype}, constants=constants, domain=DOMAIN, **given
    )
    return model, feeds, expected


# ---- QMoE


def experts(seed: int) -> tuple[Any, dict[str, Array], Array, dict[str, Any]]:
    """A random node, its feeds, the result in float64, and its attributes."""
    random = np.random.default_rng(seed)
    bits = {1: _chance(random, 4, 8, 2), 2: 0, 3: 0}
    bits[2] = bits[3] = bits[1]
    count, rows = int(random.integers(1, 6)), int(random.integers(1, 7))
    size = _chance(random, 0, 16, 32)
    hidden, inner = (int(random.integers(1, 4)) * (size * 2 or 8) for _ in range(2))
    kind = _chance(random, "relu", "gelu", "silu", "swiglu", "swiglu", "identity")
    fusion = _chance(random, 0, 1, 2) if kind == "swiglu" else 0
    dtype = _chance(random, np.float32, np.float32, np.float16)
    given: dict[str, Any] = {"k": int(random.integers(1, count + 1)), "activation_type": kind}
    given |= {"expert_weight_bits": bits[1], "weights_prepacked": 0}
    if size:
        given["block_size"] = size
    if kind == "swiglu":
        given |= {"swiglu_fusion": fusion, "activation_alpha": 1.702, "activation_beta": 1.0}
        if random.integers(2):
            given["swiglu_limit"] = 0.5
    if random.integers(2):
        given["normalize_routing_weights"] = 1
    x = random.standard_normal(_chance(random, (rows, hidden), (1, rows, hidden))).astype(dtype)
    router = random.standard_normal((rows, count)).astype(dtype)
    router.flat[0] = router.flat[-1]  # two equal ones in a row, if it is one row
    inputs: dict[str, Any] = {"x": x, "r": router}
    late: dict[str, Any] = {}
    layers = {}
    for number, (n, k) in {1: (inner * (2 if fusion else 1), hidden), 2: (hidden, inner), 3: (inner, hidden)}.items():
        there = number != 3 or (kind == "swiglu" and not fusion)
        codes = _codes(random, bits[number], count, n, k)
        blocks = k // size if size else 1
        scales = (random.random((count, n, blocks)) * 0.1).astype(dtype)
        zero: Array = np.full((count, n, blocks), 1 << (bits[number] - 1))
        late[f"z{number}"] = None
        if there and random.integers(2) and (blocks > 1 or not size):
            zero = _codes(random, bits[number], count, n, blocks)
            late[f"z{number}"] = _pack(zero if size else zero[..., 0], bits[number])
        bias = random.standard_normal((count, n)).astype(dtype) if random.integers(2) else None
        inputs |= {f"w{number}": _pack(codes, bits[number]), f"s{number}": scales if size else scales[..., 0]}
        inputs[f"b{number}"] = bias
        if not there:
            inputs |= {f"w{number}": None, f"s{number}": None, f"b{number}": None}
        wide = codes.reshape(count, n, blocks, -1) - zero[..., None].astype(np.float64)
        layers[number] = (wide * scales[..., None].astype(np.float64)).reshape(count, n, k), bias
    weights = None
    if random.integers(3) == 0:
        weights = (random.random((rows, count)) - 0.2).astype(dtype)
    inputs |= late | {"rw": weights}
    constants = [name for name, value in inputs.items() if value is not None and name not in ("x", "r", "rw")]
    model, feeds = one_node("QMoE", inputs, {"y": dtype}, constants=constants, domain=DOMAIN, **given)
    return model, feeds, _moe(x, router, weights, layers, given), given


def _moe(x: Array, router: Array, weights: Array | None, layers: dict[int, Any], given: dict[str, Any]) -> Array:
    flat = x.reshape(-1, x.shape[-1]).astype(np.float64)
    y = np.zeros_like(flat)
    for row, numbers in enumerate(router.astype(np.float64)):
        order = sorted(range(len(numbers)), key=lambda e: (numbers[e], e), reverse=True)[: given["k"]]
        share = np.exp(numbers[order] - numbers[order].max())
        share /= share.sum()
        if weights is not None:
            share = weights[row, order].astype(np.float64)
            if given.get("normalize_routing_weights"):
                share = share / share.sum()
        for part, expert in zip(share, order, strict=True):
            if part > 1e-8:
                y[row] += part * _expert(flat[row], expert, layers, given)
    return y.reshape(x.shape)


def _expert(x: Array, expert: int, layers: dict[int, Any], given: dict[str, Any]) -> Array:
    def layer(number: int, x: Array) -> Array:
        weights, bias = layers[number]
        return weights[expert] @ x + (0 if bias is None else bias[expert].astype(np.float64))

    gate, kind = layer(1, x), given["activation_type"]
    if kind == "swiglu":
        up = {0: lambda: layer(3, x), 1: lambda: gate[1::2], 2: lambda: gate[len(gate) // 2 :]}[
            given["swiglu_fusion"]
        ]()
        gate = {0: gate, 1: gate[::2], 2: gate[: len(gate) // 2]}[given["swiglu_fusion"]]
        limit = given.get("swiglu_limit", np.inf)
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
        return layer(2, gate / (1 + np.exp(-1.702 * gate)) * (up + 1))
    return layer(2, {
        "relu": lambda: np.maximum(gate, 0), "identity": lambda: gate, "silu": lambda: gate / (1 + np.exp(-gate)),
        "gelu": lambda: gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))),
    }[kind]())  # fmt: skip

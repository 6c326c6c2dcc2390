"""Three small networks whose training steps are graphs: convolutional, a transformer block, a block of experts."""

# PyTorch's functions have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from graph_api import (
    DataType,
    Graph,
    MoeGroupedMatmulMode,
    NormFwdPhase,
    PointwiseMode,
    ReductionMode,
    ResampleMode,
    TensorAttr,
)
from tests.support.training import AdamW, Arrays, Momentum, Network, f32, result

__all__ = ["NETWORKS", "convolutional", "experts", "transformer"]

P, R = PointwiseMode, ReductionMode
EPSILON = f32(1e-5)
Dims = tuple[int, ...]


def _graph(name: str) -> Graph:
    return Graph(name, io_data_type=DataType.FLOAT, compute_data_type=DataType.FLOAT)


def _sum(g: Graph, x: TensorAttr, dims: Dims, mode: ReductionMode = R.ADD) -> TensorAttr:
    return g.reduction(x, mode=mode).set_dim(dims)


def _initial(seed: int, dims: dict[str, Dims], ones: Sequence[str]) -> Arrays:
    """He's initialisation; scales of norms are about 1, vectors about 0."""
    rng = np.random.default_rng(seed)
    made: Arrays = {}
    for name, shape in dims.items():
        fan = int(np.prod(shape[1:-1])) if name.startswith("w") else 100
        made[name] = (rng.standard_normal(shape) / np.sqrt(fan) + (name in ones)).astype(np.float32)
    return made


# ---- a convolutional network ---------------------------------------------------------------------------------------

_N, _CLASSES = 4, 3
_CNN: dict[str, Dims] = {
    "w1": (3, 1, 3, 3), "scale1": (1, 3, 1, 1), "bias1": (1, 3, 1, 1),
    "w2": (4, 3, 3, 3), "bias2": (1, 4, 1, 1), "w3": (_CLASSES, 4, 2, 2), "bias3": (1, _CLASSES, 1, 1),
}  # fmt: skip
_POOL: dict[str, Any] = {"window": 2, "stride": 2}


def convolutional() -> Network:
    """Convolution, batch norm, ReLU, maximum; convolution, ReLU, average; a linear layer; softmax cross entropy."""
    parameters = _initial(1, _CNN, ("scale1",))
    parameters["w1"], parameters["w3"] = parameters["w1"] / 3, parameters["w3"] / 2
    buffers = {"mean1": np.zeros(3, np.float32), "variance1": np.ones(3, np.float32)}
    optimiser = Momentum()

    def data(step: int) -> Arrays:
        rng = np.random.default_rng(step % 2)
        labels = np.eye(_CLASSES)[rng.integers(0, _CLASSES, _N)]
        x = rng.standard_normal((_N, 1, 8, 8)).astype(np.float32).astype(np.float64)
        return {"x": x, "labels": labels}

    return Network([_cnn_graph(optimiser)], parameters, buffers, data, _cnn_loss, optimiser)


def _cnn_graph(optimiser: Momentum) -> Graph:
    g = _graph("cnn")
    x, labels = g.tensor("x", dim=(_N, 1, 8, 8)), g.tensor("labels", dim=(_N, _CLASSES, 1, 1))
    p = {name: g.tensor(f"{name}.forward", dim=dims) for name, dims in _CNN.items()}
    mean, variance = (g.tensor(name, dim=(1, 3, 1, 1)) for name in ("mean1", "variance1"))
    a = g.conv_fprop(x, p["w1"], padding=1)
    b, m, r, next_mean, next_variance = g.batchnorm(
        a, p["scale1"], p["bias1"], epsilon=EPSILON, prev_running_mean=mean, prev_running_variance=variance,
        momentum=f32(0.1),
    )  # fmt: skip
    assert next_mean is not None
    assert next_variance is not None
    result(next_mean, "next_mean1")
    result(next_variance, "next_variance1")
    c, index = g.resample_fwd(g.pointwise(P.RELU_FWD, b), mode=ResampleMode.MAXPOOL, generate_index=True, **_POOL)
    d = g.pointwise(P.ADD, g.conv_fprop(c, p["w2"], padding=1), p["bias2"])
    e, _ = g.resample_fwd(g.pointwise(P.RELU_FWD, d), mode=ResampleMode.AVGPOOL_INCLUDE_PADDING, **_POOL)
    z = g.pointwise(P.ADD, g.conv_fprop(e, p["w3"]), p["bias3"])
    dz = _cross_entropy(g, z, labels)

    gradients = {"w3": g.conv_wgrad(dz, e).set_dim(_CNN["w3"]), "bias3": _sum(g, dz, _CNN["bias3"])}
    de = g.conv_dgrad(dz, p["w3"]).set_dim((_N, 4, 2, 2))
    dd = g.resample_bwd(de, mode=ResampleMode.AVGPOOL_INCLUDE_PADDING, **_POOL).set_dim((_N, 4, 4, 4))
    dd = g.pointwise(P.RELU_BWD, dd, d)
    gradients |= {"w2": g.conv_wgrad(dd, c, padding=1).set_dim(_CNN["w2"]), "bias2": _sum(g, dd, _CNN["bias2"])}
    dc = g.conv_dgrad(dd, p["w2"], padding=1).set_dim((_N, 3, 4, 4))
    db = g.resample_bwd(dc, mode=ResampleMode.MAXPOOL, index=index, **_POOL).set_dim((_N, 3, 8, 8))
    db = g.pointwise(P.RELU_BWD, db, b)
    da, gradients["scale1"], gradients["bias1"] = g.batchnorm_backward(db, a, p["scale1"], mean=m, inv_variance=r)
    gradients["w1"] = g.conv_wgrad(da, x, padding=1).set_dim(_CNN["w1"])
    for name, dims in _CNN.items():
        gradients[name].set_dim(dims)
        optimiser.update(g, name, gradients[name])
    return g.validate()


def _cross_entropy(g: Graph, z: TensorAttr, labels: TensorAttr) -> TensorAttr:
    """The mean loss as a result, and its gradient by the logits."""
    rows = (_N, 1, 1, 1)
    shifted = g.pointwise(P.SUB, z, _sum(g, z, rows, R.MAX))
    e = g.pointwise(P.EXP, shifted)
    total = _sum(g, e, rows)
    own = _sum(g, g.pointwise(P.MUL, shifted, labels), rows)
    loss = _sum(g, g.pointwise(P.SUB, g.pointwise(P.LOG, total), own), (1, 1, 1, 1), R.AVG)
    result(loss, "loss")
    return g.pointwise(P.MUL, g.pointwise(P.SUB, g.pointwise(P.DIV, e, total), labels), 1.0 / _N)


def _cnn_loss(p: dict[str, Any], buffers: dict[str, Any], data: dict[str, Any]) -> Any:
    y = functional.conv2d(data["x"], p["w1"], padding=1)
    running = {name: buffers[name].clone() for name in buffers}
    scale, bias = (p[name].flatten() for name in ("scale1", "bias1"))
    y = functional.batch_norm(y, running["mean1"], running["variance1"], scale, bias, True, f32(0.1), EPSILON)
    buffers.update(running)
    y = functional.max_pool2d(functional.relu(y), 2)
    y = functional.relu(functional.conv2d(y, p["w2"], p["bias2"].flatten(), padding=1))
    y = functional.avg_pool2d(y, 2).flatten(1)
    logits = functional.linear(y, p["w3"].flatten(1), p["bias3"].flatten())
    return functional.cross_entropy(logits, data["labels"])


# ---- a transformer block -------------------------------------------------------------------------------------------

_B, _S, _D, _H, _F = 2, 8, 8, 2, 8
_ROWS: Dims = (1, _B * _S, _D)
_TRANSFORMER: dict[str, Dims] = {
    "scale1": (1, 1, _D), "wq": (1, _D, _D), "wk": (1, _D, _D), "wv": (1, _D, _D), "wo": (1, _D, _D),
    "scale2": (1, 1, _D), "w1": (1, _D, _F), "w2": (1, _F, _D),
}  # fmt: skip


def transformer() -> Network:
    """RMS norm, causal attention of two heads, residual; RMS norm, two products with GELU, residual; squared error."""
    optimiser = AdamW()
    parameters = _initial(2, _TRANSFORMER, ("scale1", "scale2"))

    def data(step: int) -> Arrays:
        rng = np.random.default_rng(step % 2)
        x = rng.standard_normal(_ROWS).astype(np.float32).astype(np.float64)
        return {"x": x, "target": np.roll(x, 1, 1)}

    stages = [_before_attention(), _attention(), _after_attention(), _mlp_gradients(), _attention_gradients(),
              _projection_gradients(), _updates(optimiser, _TRANSFORMER)]  # fmt: skip
    return Network(stages, parameters, {}, data, _transformer_loss, optimiser)


def _rows(g: Graph, *names: str) -> list[TensorAttr]:
    return [g.tensor(name, dim=_ROWS) for name in names]


def _weights(g: Graph, *names: str) -> list[TensorAttr]:
    return [g.tensor(name, dim=_TRANSFORMER[name]) for name in names]


def _transposed(g: Graph, name: str, dims: Dims) -> TensorAttr:
    """The view of an array of ``dims`` with the last two exchanged."""
    lead, m, n = dims
    return g.tensor(f"{name}.t", dim=(lead, n, m), stride=(m * n, 1, n))


def _rmsnorm(g: Graph, x: TensorAttr, scale: TensorAttr, number: int) -> TensorAttr:
    """Also a result, as the inverse root of the mean square is."""
    y, inverse = g.rmsnorm(x, scale, epsilon=EPSILON, forward_phase=NormFwdPhase.TRAINING)
    assert inverse is not None
    result(inverse, f"inverse{number}")
    return result(y, f"h{number}")


def _heads(g: Graph, *names: str) -> list[TensorAttr]:
    """[batch, head, position, width] of arrays [position of all batches, width of all heads]."""
    width = _D // _H
    return [g.tensor(name, dim=(_B, _H, _S, width), stride=(_S * _D, width, _D, 1)) for name in names]


def _before_attention() -> Graph:
    g = _graph("before_attention")
    (x,), weights = _rows(g, "x"), _weights(g, "scale1", "wq", "wk", "wv")
    h = _rmsnorm(g, x, weights[0], 1)
    for name, w in zip("qkv", weights[1:], strict=True):
        result(g.matmul(h, w), name)
    return g.validate()


def _attention() -> Graph:
    g = _graph("attention")
    o, stats = g.sdpa(*_heads(g, "q", "k", "v"), causal_mask=True, generate_stats=True)
    assert stats is not None
    result(o, "o").set_stride((_S * _D, _D // _H, _D, 1))
    result(stats, "stats").set_stride((_H * _S, _S, 1, 1))
    return g.validate()


def _after_attention() -> Graph:
    g = _graph("after_attention")
    o, x, target = _rows(g, "o", "x", "target")
    wo, scale, w1, w2 = _weights(g, "wo", "scale2", "w1", "w2")
    a = result(g.pointwise(P.ADD, g.matmul(o, wo), x), "a")
    u = result(g.matmul(_rmsnorm(g, a, scale, 2), w1), "u")
    y = g.pointwise(P.ADD, g.matmul(result(g.pointwise(P.GELU_FWD, u), "gelu"), w2), a)
    _squared_error(g, y, target)
    return g.validate()


def _squared_error(g: Graph, y: TensorAttr, target: TensorAttr) -> None:
    """The mean loss and its gradient by y, as results."""
    difference = g.pointwise(P.SUB, y, target)
    loss = _sum(g, g.pointwise(P.MUL, difference, difference), (1, 1, 1), R.AVG)
    result(loss, "loss")
    count = int(np.prod(_ROWS))
    result(g.pointwise(P.MUL, difference, 2.0 / count), "dy")


def _mlp_gradients() -> Graph:
    g = _graph("mlp_gradients")
    dy, a = _rows(g, "dy", "a")
    hidden = (1, _B * _S, _F)
    (scale,) = _weights(g, "scale2")
    u, inverse = g.tensor("u", dim=hidden), g.tensor("inverse2", dim=(1, _B * _S, 1))
    du = g.pointwise(P.GELU_BWD, g.matmul(dy, _transposed(g, "w2", _TRANSFORMER["w2"])), u)
    result(g.matmul(_transposed(g, "gelu", hidden), dy), "dw2")
    result(g.matmul(_transposed(g, "h2", _ROWS), du), "dw1")
    dh = g.matmul(du, _transposed(g, "w1", _TRANSFORMER["w1"]))
    through, dscale, _ = g.rmsnorm_backward(dh, a, scale, inverse)
    result(dscale, "dscale2")
    da = g.pointwise(P.ADD, through, dy)
    result(g.matmul(_transposed(g, "o", _ROWS), da), "dwo")
    result(g.matmul(da, _transposed(g, "wo", _TRANSFORMER["wo"])), "do")
    return g.validate()


def _attention_gradients() -> Graph:
    g = _graph("attention_gradients")
    q, k, v, o, do = _heads(g, "q", "k", "v", "o", "do")
    stats = g.tensor("stats", dim=(_B, _H, _S, 1))
    for name, gradient in zip("qkv", g.sdpa_backward(q, k, v, o, do, stats, causal_mask=True), strict=True):
        result(gradient, f"d{name}").set_stride(q.strides)
    return g.validate()


def _projection_gradients() -> Graph:
    g = _graph("projection_gradients")
    x, *gradients = _rows(g, "x", "dq", "dk", "dv")
    (scale,) = _weights(g, "scale1")
    h, inverse = _transposed(g, "h1", _ROWS), g.tensor("inverse1", dim=(1, _B * _S, 1))
    total: TensorAttr | None = None
    for name, gradient in zip("qkv", gradients, strict=True):
        result(g.matmul(h, gradient), f"dw{name}")
        through = g.matmul(gradient, _transposed(g, f"w{name}", _TRANSFORMER[f"w{name}"]))
        total = through if total is None else g.pointwise(P.ADD, total, through)
    assert total is not None
    result(g.rmsnorm_backward(total, x, scale, inverse)[1], "dscale1")
    return g.validate()


def _updates(optimiser: Momentum | AdamW, parameters: dict[str, Dims]) -> Graph:
    g = _graph("updates")
    for name, dims in parameters.items():
        optimiser.update(g, name, g.tensor(f"d{name}", dim=dims))
    return g.validate()


def _transformer_loss(p: dict[str, Any], buffers: dict[str, Any], data: dict[str, Any]) -> Any:
    x = data["x"]
    h = functional.rms_norm(x, (_D,), p["scale1"].flatten(), EPSILON)
    q, k, v = ((h @ p[name]).view(_B, _S, _H, -1).transpose(1, 2) for name in ("wq", "wk", "wv"))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        o = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    a = x + o.transpose(1, 2).reshape(_ROWS) @ p["wo"]
    h = functional.rms_norm(a, (_D,), p["scale2"].flatten(), EPSILON)
    y = a + functional.gelu(h @ p["w1"]) @ p["w2"]
    return functional.mse_loss(y, data["target"])


# ---- a block of experts --------------------------------------------------------------------------------------------

_T, _E, _K = _B * _S, 4, 2
_PLACES = _T * _K
_EXPERTS: dict[str, Dims] = {"scale": (1, 1, _D), "wr": (1, _D, _E), "w1": (_E, _D, _F), "w2": (_E, _F, _D)}
_GATHER, _SCATTER = MoeGroupedMatmulMode.GATHER, MoeGroupedMatmulMode.SCATTER


def experts() -> Network:
    """RMS norm, a router that sends each row to two of four experts, SWISH between their products, residual."""
    optimiser = Momentum(rate=0.25)
    parameters = _initial(3, _EXPERTS, ("scale",))

    def data(step: int) -> Arrays:
        rng = np.random.default_rng(step % 2)
        x = rng.standard_normal(_ROWS).astype(np.float32).astype(np.float64)
        return {"x": x, "target": np.flip(x, 2).copy()}

    stages = [_router(), _routing, _expert_products(), _combined(), _expert_gradients(), _router_gradients(),
              _norm_gradients(), _updates(optimiser, _EXPERTS)]  # fmt: skip
    return Network(stages, parameters, {}, data, _experts_loss, optimiser)


def _router() -> Graph:
    g = _graph("router")
    (x,) = _rows(g, "x")
    h = _rmsnorm(g, x, g.tensor("scale", dim=_EXPERTS["scale"]), 1)
    z = g.matmul(h, g.tensor("wr", dim=_EXPERTS["wr"]))
    e = g.pointwise(P.EXP, g.pointwise(P.SUB, z, _sum(g, z, (1, _T, 1), R.MAX)))
    result(g.pointwise(P.DIV, e, _sum(g, e, (1, _T, 1))), "p")
    return g.validate()


def _routing(memory: Arrays) -> Arrays:
    """What the host makes of probabilities: rows in the order of their experts, and which expert each place has.

    Place t * k + i is the i-th choice of token t.
    """
    chosen = np.argsort(-memory["p"].reshape(_T, _E), 1, kind="stable")[:, :_K].reshape(-1)
    places = np.argsort(chosen, kind="stable")
    return {
        "offsets": np.searchsorted(chosen[places], np.arange(_E)).astype(np.int32),
        "first": np.zeros(1, np.int32),
        "token_index": (places // _K).astype(np.int32),
        "choice": (places % _K).astype(np.int32),
        "place": places.astype(np.int32),
        "one_hot": np.eye(_E, dtype=np.float32)[chosen].reshape(-1),
        "identity": np.eye(_D, dtype=np.float32).reshape(-1),
    }


def _routes(g: Graph, *names: str) -> list[TensorAttr]:
    dims = {"offsets": (_E, 1, 1), "first": (1, 1, 1)}
    return [g.tensor(name, dim=dims.get(name, (1, _PLACES, 1)), data_type=DataType.INT32) for name in names]


def _hidden(g: Graph, *names: str) -> list[TensorAttr]:
    return [g.tensor(name, dim=(1, _PLACES, _F)) for name in names]


def _expert_products() -> Graph:
    g = _graph("expert_products")
    (h,) = _rows(g, "h1")
    w1, w2 = (g.tensor(name, dim=_EXPERTS[name]) for name in ("w1", "w2"))
    offsets, index, choice = _routes(g, "offsets", "token_index", "choice")
    u = result(g.moe_grouped_matmul(h, w1, offsets, index, mode=_GATHER), "u")
    swish = result(g.pointwise(P.SWISH_FWD, u), "swish")
    result(g.moe_grouped_matmul(swish, w2, offsets, index, choice, mode=_SCATTER, top_k=_K), "s")
    return g.validate()


def _combined() -> Graph:
    """y = x + sum of each token's results, weighted; and the gradients by results and weights."""
    g = _graph("combined")
    x, target = (g.tensor(name, dim=(_T, 1, _D)) for name in ("x", "target"))
    s, p = g.tensor("s", dim=(_T, _K, _D)), g.tensor("p", dim=(_T, 1, _E))
    one_hot = g.tensor("one_hot", dim=(_T, _K, _E))
    weights = _sum(g, g.pointwise(P.MUL, p, one_hot), (_T, _K, 1))
    y = g.pointwise(P.ADD, _sum(g, g.pointwise(P.MUL, s, weights), (_T, 1, _D)), x)
    difference = g.pointwise(P.SUB, y, target)
    result(_sum(g, g.pointwise(P.MUL, difference, difference), (1, 1, 1), R.AVG), "loss")
    dy = g.pointwise(P.MUL, difference, 2.0 / (_T * _D))
    result(g.pointwise(P.MUL, dy, weights), "ds")
    dweights = _sum(g, g.pointwise(P.MUL, dy, s), (_T, _K, 1))
    result(_sum(g, g.pointwise(P.MUL, dweights, one_hot), (_T, 1, _E)), "dp")
    return g.validate()


def _expert_gradients() -> Graph:
    """Rows come into the order of their experts by a gathering product with the identity, which is exact."""
    g = _graph("expert_gradients")
    (h,), ds = _rows(g, "h1"), g.tensor("ds", dim=(1, _PLACES, _D))
    u, swish = _hidden(g, "u", "swish")
    w1, w2 = (_transposed(g, name, _EXPERTS[name]) for name in ("w1", "w2"))
    offsets, first, index, choice, place = _routes(g, "offsets", "first", "token_index", "choice", "place")
    identity = g.tensor("identity", dim=(1, _D, _D))
    ds_rows = g.moe_grouped_matmul(ds, identity, first, place, mode=_GATHER)
    h_rows = g.moe_grouped_matmul(h, identity, first, index, mode=_GATHER)
    du = g.pointwise(P.SWISH_BWD, g.moe_grouped_matmul(ds_rows, w2, offsets), u)
    for name, gradient, token in (("w2", ds_rows, swish), ("w1", du, h_rows)):
        _, k, n = _EXPERTS[name]
        dw = g.moe_grouped_matmul_bwd(gradient, token, offsets)
        result(dw, f"d{name}").set_stride((k * n, n, 1))
    result(g.moe_grouped_matmul(du, w1, offsets, index, choice, mode=_SCATTER, top_k=_K), "dh_places")
    return g.validate()


def _router_gradients() -> Graph:
    g = _graph("router_gradients")
    p, dp = (g.tensor(name, dim=(1, _T, _E)) for name in ("p", "dp"))
    inner = _sum(g, g.pointwise(P.MUL, p, dp), (1, _T, 1))
    dz = g.pointwise(P.MUL, p, g.pointwise(P.SUB, dp, inner))
    result(g.matmul(_transposed(g, "h1", _ROWS), dz), "dwr")
    result(g.matmul(dz, _transposed(g, "wr", _EXPERTS["wr"])), "dh_router")
    return g.validate()


def _norm_gradients() -> Graph:
    g = _graph("norm_gradients")
    x, scale, inverse = (g.tensor(name, dim=dims) for name, dims in
                         (("x", (_T, 1, _D)), ("scale", _EXPERTS["scale"]), ("inverse1", (_T, 1, 1))))  # fmt: skip
    places, router = g.tensor("dh_places", dim=(_T, _K, _D)), g.tensor("dh_router", dim=(_T, 1, _D))
    dh = g.pointwise(P.ADD, _sum(g, places, (_T, 1, _D)), router)
    result(g.rmsnorm_backward(dh, x, scale, inverse)[1], "dscale")
    return g.validate()


def _experts_loss(p: dict[str, Any], buffers: dict[str, Any], data: dict[str, Any]) -> Any:
    x = data["x"][0]
    h = functional.rms_norm(x, (_D,), p["scale"].flatten(), EPSILON)
    probabilities = functional.softmax(h @ p["wr"][0], 1)
    best = probabilities.topk(_K, 1).indices
    weights = torch.zeros_like(probabilities).scatter(1, best, 1.0) * probabilities
    hidden = functional.silu(torch.einsum("td,edf->tef", h, p["w1"]))  # of every expert for every token
    results = torch.einsum("tef,efd->ted", hidden, p["w2"])
    return functional.mse_loss(x + (weights[:, :, None] * results).sum(1), data["target"][0])


NETWORKS = {"cnn": convolutional, "transformer": transformer, "experts": experts}

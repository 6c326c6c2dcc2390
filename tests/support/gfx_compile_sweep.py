"""Compile random convolutions, products, pools and reductions for AMD targets: no GPU, no execution.

    python -m tests.support.gfx_compile_sweep --count 200 --seed 1 --targets gfx90a,gfx942,gfx950

Sizes are ragged on purpose. Each graph that `support` serves is compiled as the bridge does, with every variant that it
would try. Told are the graphs that do not compile, those that took another variant than the first, and those with a
kernel that does nothing but pad, which the compiler makes wrong. The same seed gives the same graphs.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from graph_api import CompileError, DataType, Graph, GraphError, PointwiseMode, ReductionMode, ResampleMode
from iree_bridge import Options, Target, support
from iree_bridge.compiler import compile_code

__all__ = ["Outcome", "graphs", "lone_padding", "outcome"]

_FLOATS = (DataType.HALF, DataType.BFLOAT16, DataType.FLOAT)
_CHANNELS = (1, 2, 3, 4, 5, 7, 8, 12, 13, 16, 24, 32, 48, 64, 96)
_LAYOUTS = {1: (None, "NWC"), 2: (None, "NHWC"), 3: (None, "NDHWC")}
_LONE = re.compile(rb"main\$async_dispatch_\d+\.kd")


def graphs(seed: int, count: int) -> Iterator[tuple[str, Graph]]:
    """Random valid graphs, each with a text that says what it is."""
    random = Random(seed)
    makers = (_convolution,) * 6 + (_product,) * 3 + (_pool, _reduction)
    made = 0
    while made < count:
        try:
            text, graph = random.choice(makers)(random)
            graph.validate()
        except GraphError:
            continue
        made += 1
        yield text, graph


def _convolution(random: Random) -> tuple[str, Graph]:
    kind, rank = random.choice(("fprop", "dgrad", "wgrad")), random.choice((1, 2, 2, 2, 2, 3))
    dtype, groups = random.choice(_FLOATS), random.choice((1, 1, 1, 1, 2, 3, 4, 8))
    per_group, filters = random.choice(_CHANNELS), random.choice(_CHANNELS)
    if random.random() < 0.1:
        groups, per_group, filters = filters, 1, random.choice((1, 2))  # depthwise
    window = tuple(random.choice((1, 1, 2, 3, 3, 3, 4, 5, 7)) for _ in range(rank))
    if random.random() < 0.5:
        window = (window[0],) * rank
    stride, dilation = (_each(random, rank, (1, 1, 1, 2, 2, 3)), _each(random, rank, (1, 1, 1, 1, 2, 3)))
    pre = _each(random, rank, (0, 0, 1, 1, 2, 3))
    post = pre if random.random() < 0.7 else _each(random, rank, (0, 1, 2))
    size = tuple(random.choice((1, 2, 3, 5, 7, 8, 9, 14, 16, 17, 28, 32)) for _ in range(rank))
    out = [
        (size[i] + pre[i] + post[i] - dilation[i] * (window[i] - 1) - 1) // stride[i] + 1 for i in range(rank)
    ]  # fmt: skip
    if min(out) < 1:
        raise GraphError("the filter does not fit")
    n = random.choice((1, 1, 2, 3, 4, 8))
    dims = {
        "x": (n, groups * per_group, *size),
        "w": (groups * filters, per_group, *window),
        "dy": (n, groups * filters, *out),
    }
    layout = random.choice(_LAYOUTS[rank])
    layouts = {name: layout if random.random() < 0.85 else random.choice(_LAYOUTS[rank]) for name in dims}
    g = Graph(kind, io_data_type=dtype, compute_data_type=DataType.FLOAT)
    used = {"fprop": ("x", "w"), "dgrad": ("dy", "w"), "wgrad": ("dy", "x")}[kind]
    tensors = [g.tensor(name, dim=dims[name], layout=layouts[name]) for name in used]
    add = {"fprop": g.conv_fprop, "dgrad": g.conv_dgrad, "wgrad": g.conv_wgrad}[kind]
    y = add(*tensors, pre_padding=pre, post_padding=post, stride=stride, dilation=dilation)
    if kind != "fprop":
        y.set_dim(dims["x" if kind == "dgrad" else "w"])
    elif random.random() < 0.4:
        bias = g.tensor("b", dim=(1, dims["w"][0], *(1,) * rank), layout=layouts["x"])
        y = g.pointwise(PointwiseMode.RELU_FWD, g.pointwise(PointwiseMode.ADD, y, bias))
    y.set_output(True)
    text = f"{kind} {dtype.name} {dims} stride {stride} dilation {dilation} padding {pre} {post} {layouts}"
    return text, g


def _each(random: Random, rank: int, choices: tuple[int, ...]) -> tuple[int, ...]:
    one = random.choice(choices)
    return (one,) * rank if random.random() < 0.6 else tuple(random.choice(choices) for _ in range(rank))


def _product(random: Random) -> tuple[str, Graph]:
    sizes = (1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 32, 33, 48, 49, 64, 75, 96, 128, 197, 256)
    m, k, n = (random.choice(sizes) for _ in range(3))
    batch, b_batch = random.choice(((), (), (2,), (3, 2), (1, 4))), random.random() < 0.6
    dtype = random.choice(_FLOATS)
    g = Graph("product", io_data_type=dtype, compute_data_type=DataType.FLOAT)
    dims = (*batch, m, k), (*(batch if b_batch else (1,) * len(batch)), k, n)
    strides = [_transposed(d) if random.random() < 0.3 else None for d in dims]
    a, b = (g.tensor(name, dim=d, stride=s) for name, d, s in zip("ab", dims, strides, strict=True))
    y = g.matmul(a, b)
    if random.random() < 0.4:
        y = g.pointwise(PointwiseMode.GELU_FWD, g.pointwise(PointwiseMode.ADD, y, g.tensor("c", dim=(n,))))
    y.set_output(True)
    return f"product {dtype.name} {dims} transposed {[s is not None for s in strides]}", g


def _transposed(dims: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [0] * len(dims), 1
    for axis in (len(dims) - 2, len(dims) - 1, *reversed(range(len(dims) - 2))):
        strides[axis], step = step, step * dims[axis]
    return tuple(strides)


def _pool(random: Random) -> tuple[str, Graph]:
    dtype = random.choice(_FLOATS)
    dims = (random.choice((1, 2, 3)), random.choice(_CHANNELS), random.choice((1, 5, 9, 14)), random.choice((1, 7, 8)))
    window, stride, padding = (_each(random, 2, choices) for choices in ((1, 2, 3), (1, 2, 3), (0, 1)))
    mode = random.choice((ResampleMode.MAXPOOL, ResampleMode.AVGPOOL_INCLUDE_PADDING))
    g = Graph("pool", io_data_type=dtype, compute_data_type=DataType.FLOAT)
    x = g.tensor("x", dim=dims, layout=random.choice(_LAYOUTS[2]))
    index = mode is ResampleMode.MAXPOOL and random.random() < 0.5
    for made in g.resample_fwd(x, mode=mode, window=window, stride=stride, padding=padding, generate_index=index):
        if made is not None:
            made.set_output(True)
    return f"pool {mode.name} {dtype.name} {dims} window {window} stride {stride} padding {padding} index {index}", g


def _reduction(random: Random) -> tuple[str, Graph]:
    dtype, mode = random.choice(_FLOATS), random.choice(list(ReductionMode))
    dims = tuple(random.choice((1, 2, 3, 7, 16, 33, 64, 129)) for _ in range(random.choice((2, 3, 4))))
    kept = tuple(1 if random.random() < 0.5 else d for d in dims)
    g = Graph("reduction", io_data_type=dtype, compute_data_type=DataType.FLOAT)
    g.reduction(g.tensor("x", dim=dims), mode=mode).set_dim(kept).set_output(True)
    return f"reduction {mode.name} {dtype.name} {dims} to {kept}", g


@dataclass(frozen=True)
class Outcome:
    """What became of a graph: ``declined``, ``failed``, or compiled in the variant ``form``."""

    kind: str
    form: str = ""
    message: str = ""
    seconds: float = 0.0
    pads_alone: bool = False


def lone_padding(vmfb: bytes) -> bool:
    """Whether a kernel does nothing but pad: its name says no operation."""
    return _LONE.search(vmfb) is not None


def outcome(graph: Graph, target: Target, options: Options) -> Outcome:
    """Compile a graph and say what became of it."""
    answer = support(graph, target)
    if not answer.ok:
        return Outcome("declined", message=str(answer.reason))
    begin = time.perf_counter()
    try:
        code = compile_code(graph, target, options)
    except CompileError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        return Outcome("failed", message=" | ".join(lines[:3])[:300], seconds=time.perf_counter() - begin)
    form = getattr(code, "form", "")
    return Outcome("compiled", form, seconds=code.seconds, pads_alone=lone_padding(code.vmfb))


def main(arguments: list[str]) -> int:
    """The command; its status is 1 if a served graph did not compile or pads in a kernel of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="leave out so many graphs at first")
    parser.add_argument("--targets", default="gfx942")
    given = parser.parse_args(arguments)
    options, bad = replace(Options.from_env(), failures=0), 0
    targets = [Target.parse(name) for name in given.targets.split(",")]
    counts: Counter[str] = Counter()
    for text, graph in itertools.islice(graphs(given.seed, given.start + given.count), given.start, None):
        for target in targets:
            it = outcome(graph, target, options)
            counts[f"{target} {it.kind} {it.form}".strip()] += 1
            wrong = it.kind == "failed" or it.pads_alone
            bad += wrong
            if wrong or it.form not in ("", "plain", "fused padding") or it.seconds > 20:
                told = "PADS ALONE" if it.pads_alone else it.kind.upper()
                print(f"{told} {target} {it.form} {it.seconds:.1f} s: {text} {it.message}", flush=True)
    for name, number in sorted(counts.items()):
        print(f"{number:6d} {name}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

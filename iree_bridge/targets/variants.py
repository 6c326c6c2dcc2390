"""Which of several right ways a graph is emitted and compiled on a target: decided here, without a compiler.

A target has forms, each with the rule for which graphs its code is right, in the order in which they are wanted. The
first that applies is the graph's; where the compiler fails on it, the next one that applies is taken, and so on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Final, NamedTuple

from graph_api import AttentionImplementation, DataType, Graph, Node, TensorAttr
from graph_api.layout import stride_order
from graph_api.ops.conv import ConvFpropNode, ConvNode
from graph_api.ops.custom_op import CustomOpNode
from graph_api.ops.matmul import batch_factors
from graph_api.ops.norm import BatchnormNode
from graph_api.ops.resample import ResampleFwdNode
from graph_api.ops.sdpa import SdpaNode
from iree_bridge.targets.target import Target

__all__ = [
    "FUSED_PADDING",
    "MASKED_TILES",
    "PROCESS_FLAGS",
    "Kernels",
    "Variant",
    "candidates",
    "choose",
    "is_by_taps",
    "is_channels_last",
    "is_ragged_attention",
    "is_usual",
    "named",
    "reads_parts",
    "uses_fused_attention",
    "variants",
]


class Kernels(StrEnum):
    """How products and convolutions are emitted for a CPU.

    SQUARE: with tiles of ours, the innermost of which holds about as many rows as vectors of columns.
    TALL: of more rows and fewer columns. WIDE: of fewer rows and more columns.
    COMPILER: as named operations, whose tiles the compiler chooses.
    """

    SQUARE = "square"
    TALL = "tall"
    WIDE = "wide"
    COMPILER = "compiler"


class Variant(NamedTuple):
    """One way to emit and compile a graph.

    Attributes:
        name: stable name, part of the cache key.
        flags: compiler flags of this graph, in addition to the target's.
        kernels: of products and convolutions on a CPU.
        apart: each node is a kernel of its own, and so are changes of the order of dims.
        is_proven: its code is right by tests and sweeps; code of others serves only where it was checked on the device.
    """

    name: str
    flags: tuple[str, ...] = ()
    kernels: Kernels = Kernels.SQUARE
    is_proven: bool = True
    apart: bool = False


class _Form(NamedTuple):
    variant: Variant
    applies: Callable[[Graph, Target], bool]


def variants(graph: Graph, target: Target) -> tuple[Variant, ...]:
    """The ways in which code of ``graph`` is right on ``target``, the one that is wanted first; at least one.

    AMD: padding becomes a part of the convolution's kernel, so that convolution, bias and ReLU are one. Where it
    cannot, a kernel that does nothing but pad is made, and that one is compiled wrongly (``docs/upstream``). So only
    graphs whose padding is all taken in are compiled like that. The tiles of matrix instructions fail on some shapes,
    or need more local memory than there is, so there are forms without them behind it. Loads always go through buffer
    instructions: without them, the tail of a tile is not masked. Sums are not split over kernels in graphs with
    convolutions, where that was wrong, and with most batchnorms in training, where it costs. A sum of more than a sum
    (of negated numbers), which the compiler cannot split, is left whole. Ragged attention has tiles of ours, whose ends
    the compiler masks; where it does not distribute these, operands are filled up in the next form.

    Everywhere: the compiler refuses some images that have several readers, one of which reads single elements in
    strides, but where what has several readers joins none of them. What it refuses in each other form is made node by
    node.

    GPUs: sums over several dims are shared out wrongly to threads at times (``hazards``); then a thread takes each.

    CUDA: the pipelines that use tensor cores made some float16 products and convolutions wrong on a real GPU
    (``docs/gpu_findings.md``). CUDA is for development here, so it does without; attention
    compiles with one of them only.

    CPU: a forward convolution ends in a view of its product, which keeps what follows from joining the product's kernel
    unless views are moved. Less is fused where the compiler refuses more.
    """
    return _those(_FORMS[target.backend], graph, target)


def candidates(graph: Graph, target: Target) -> tuple[Variant, ...]:
    """What may be measured: the graph's variants, and those whose code is right only for some graphs.

    CUDA: the pipelines with tensor cores. CPU: other tiles, and the compiler's own.
    """
    return (*variants(graph, target), *_those(_TRIALS.get(target.backend, ()), graph, target))


def named(graph: Graph, target: Target, name: str) -> Variant | None:
    """The graph's candidate of a name; None: it has none."""
    return next((variant for variant in candidates(graph, target) if variant.name == name), None)


def _those(forms: tuple[_Form, ...], graph: Graph, target: Target) -> tuple[Variant, ...]:
    found = tuple(form.variant for form in forms if form.applies(graph, target))
    if target.backend != "rocm" or not (any(isinstance(n, ConvNode) for n in graph.nodes) or _has_channel_sums(graph)):
        return found
    return tuple(it._replace(flags=(*it.flags, *_NO_SPLIT_SUMS)) for it in found)


def choose(graph: Graph, target: Target) -> Variant:
    """The first of the graph's variants."""
    return variants(graph, target)[0]


def _any(graph: Graph, target: Target) -> bool:
    return True


def _attends(graph: Graph, target: Target) -> bool:
    return any(_is_attention(node) for node in graph.nodes)


def _is_attention(node: Node) -> bool:
    return node.op == "sdpa" or (isinstance(node, CustomOpNode) and "attention" in node.attributes.data)


def uses_fused_attention(node: SdpaNode, target: Target) -> bool:
    """Whether ``target`` computes the node as one fused operation, which exists in FLOAT only.

    The compiler crashes on a single key, and does not distribute a single query of a single head, nor for CUDA those of
    a single head in 16 bits that 16 does not divide. Its operation has no place between weights and values for a
    dropout's mask.
    """
    batch, heads, queries, keys = node.score_dims
    composite = node.attributes.implementation is AttentionImplementation.COMPOSITE
    fits = keys > 1 and batch * heads * queries > 1
    if target.backend == "cuda" and batch * heads == 1 and node.inputs["q"].data_type is not DataType.FLOAT:
        fits = fits and queries % 16 == 0
    return target.is_gpu and node.compute is DataType.FLOAT and fits and not composite and not node.drops


def is_ragged_attention(node: Node, target: Target) -> bool:
    """Whether matrix instructions can do an attention whose numbers of queries and keys they do not divide.

    Its tiles are then set here, and the compiler masks their ends: one kernel. Otherwise operands are filled up and the
    result is cut, four kernels more, which only large attention is worth, whose tiles are better without masks.
    """
    if not isinstance(node, SdpaNode) or target.backend != "rocm" or not uses_fused_attention(node, target):
        return False
    _, _, queries, keys = node.score_dims
    q, k, v = (node.inputs[port] for port in "qkv")
    types = {node.multiplied(tensor) for tensor in (q, k, v)}
    fits = types == {DataType.HALF} or (types == {DataType.BFLOAT16} and target.chip != "gfx908")
    fits = fits and not (node.is_paged("k") or node.is_paged("v"))
    fits = fits and queries > 1 and {q.dims[3], v.dims[3]} <= {16, 32, 64, 128}  # such as threads share out evenly
    return fits and bool(queries % 16 or keys % 16) and math.prod(node.score_dims) <= _SMALL_ATTENTION


_SMALL_ATTENTION: Final = 1 << 24
"""Scores; with heads of 64 about 4 GFLOP, some 10 microseconds, which is what four launches take."""


def _is_plain(graph: Graph, target: Target) -> bool:
    return not _is_skinny(graph, target) and not _has_ragged_groups(graph) and _gathers(graph)


def _reduces(graph: Graph) -> bool:
    return any(node.op == "reduction" for node in graph.nodes)


def _sums_over_dims(graph: Graph) -> bool:
    """Whether a sum goes over two dims or more: in loops of which the compiler may share out the innermost wrongly."""
    return any(_summed(node) > 1 for node in graph.nodes)


def _summed(node: Node) -> int:
    """Over how many dims a node sums at most."""
    if node.op == "reduction":
        x, y = node.inputs["x"].dims, node.outputs["y"].dims
        return sum(kept < size for size, kept in zip(x, y, strict=True))
    if "norm" in node.op and not node.op.startswith("batchnorm_inference"):
        return sum(size > 1 for size in node.inputs["x"].dims)
    return 0


def _reads_parts(graph: Graph, target: Target) -> bool:
    return any(reads_parts(node) for node in graph.nodes)


def reads_parts(node: Node) -> bool:
    """Whether windows of one element in strides read an image.

    The compiler may join such a reader with what makes the image, and the kernel runs over what the reader meets: of an
    image that is stored, or read by others too, the rest was not written. So it stands behind a barrier.
    """
    if isinstance(node, ResampleFwdNode):
        window = node.attributes.window
    elif isinstance(node, ConvFpropNode):
        window = node.inputs["w"].dims[2:]
    else:
        return False
    steps = zip(node.inputs["x"].dims[2:], node.attributes.stride, strict=True)
    return math.prod(window) == 1 and any(size > 1 and stride > 1 for size, stride in steps)


def _has_ragged_attention(graph: Graph, target: Target) -> bool:
    return any(is_ragged_attention(node, target) for node in graph.nodes)


def _convolves(graph: Graph, target: Target) -> bool:
    return any(node.op == "conv_fprop" for node in graph.nodes)


def _multiplies(graph: Graph, target: Target) -> bool:
    """Whether there is a product, or what is computed as one."""
    return any(node.op in _PRODUCTS for node in graph.nodes)


_PRODUCTS: Final = {"matmul", "conv_fprop", "conv_dgrad", "conv_wgrad", "sdpa", "sdpa_backward", "moe_grouped_matmul"}


def _multiplies_halves(graph: Graph, target: Target) -> bool:
    halves = (DataType.HALF, DataType.BFLOAT16)
    return _multiplies(graph, target) and any(tensor.data_type in halves for tensor in graph.arguments().inputs)


def _has_channel_sums(graph: Graph) -> bool:
    """Whether there are sums of a batchnorm in training that a work group each does well.

    Split over groups they are kernels of their own, and x less its mean goes through memory: 6 dispatches, else 2.
    Splits are worth that where few channels of many elements would leave most of a chip without work.
    """
    for node in graph.nodes:
        if isinstance(node, BatchnormNode):
            x = node.inputs["x"].dims
            return x[1] >= _MANY_CHANNELS or math.prod(x) // x[1] <= _FEW_TERMS
    return False


_MANY_CHANNELS: Final = 64
_FEW_TERMS: Final = 1 << 14


def _pads_convolutions_only(graph: Graph, target: Target) -> bool:
    ops = {node.op for node in graph.nodes}
    if ops & _OTHER_PADDING or any(
        _has_unmet_rows(node) or _falls_short(node) or _is_narrow(node) for node in graph.nodes
    ):
        return False
    return any(_pads(node) for node in graph.nodes)


_OTHER_PADDING: Final = {"resample_fwd", "custom_op"}
"""Operations that may pad for themselves."""


def _pads(node: Node) -> bool:
    """Whether the convolution reads padding that becomes a part of its kernel."""
    if not isinstance(node, ConvNode):
        return False
    window = (node.outputs["dw"] if node.op == "conv_wgrad" else node.inputs["w"]).dims[2:]
    image = node.inputs["dy" if node.op == "conv_dgrad" else "x"].dims[2:]
    if all(size == 1 for size in window) or 1 in image:  # products; images without the row
        return False
    # For the data gradient the border of dy is padding.
    return node.op == "conv_dgrad" or any((*node.attributes.pre_padding, *node.attributes.post_padding))


def _has_unmet_rows(node: Node) -> bool:
    """Whether dx has rows that no filter position meets: zeros, put between the others by padding of its own."""
    if not isinstance(node, ConvNode) or node.op != "conv_dgrad":
        return False
    a, window = node.attributes, node.inputs["w"].dims[2:]
    return any(s > d * (size - 1) + 1 for s, d, size in zip(a.stride, a.dilation, window, strict=True))


def _falls_short(node: Node) -> bool:
    """Whether fused padding makes offsets that are negative before a constant is added: right only where they wrap."""
    if not isinstance(node, ConvNode) or node.groups == 1:
        return False
    image = node.inputs["dy" if node.op == "conv_dgrad" else "x"].dims[2:]
    return node.op == "conv_wgrad" or sum(size > 1 for size in image) < 2


def _is_narrow(node: Node) -> bool:
    """Whether fused padding reads nothing but NaN: several images in one dim, of a result of 2 to 4 channels.

    They have no matrix tiles; of 212 such graphs 59 were wrong, of those with one image or two spatial dims none.
    """
    if not isinstance(node, ConvNode) or node.op == "conv_wgrad":
        return False
    result = next(iter(node.outputs.values()))
    return len(result.dims) == 3 and result.dims[0] > 1 and result.dims[1] <= _NARROW


_NARROW: Final = 4
"""Channels that are too few for the compiler's matrix tiles."""


def _gathers(graph: Graph) -> bool:
    """Whether the images of each convolution may be gathered into the matrix of a product (implicit GEMM).

    The compiler's gathering takes the terms of a sum in another order than the filters have them where they do not lie
    in one piece in both: results with a spatial dim of 1, channels-last groups but for depthwise ones. Nearly every
    number is wrong then (``docs/gpu_findings.md``); filters that lie otherwise than the images are rearranged by the
    emission. The rule is wider than the fault: no convolution outside of it was wrong in a sweep.
    """
    return not any(_is_mixed(node) for node in graph.nodes)


def _is_mixed(node: Node) -> bool:
    if not isinstance(node, ConvNode):
        return False
    a = node.attributes
    if node.op == "conv_wgrad":  # the filters that dy is pass over x and make dw
        result, window = node.outputs["dw"].dims[2:], node.inputs["dy"].dims[2:]
        is_product = all(size == 1 for size in result) and max(a.stride) == 1
        return not is_product and any(size == 1 < met for size, met in zip(result, window, strict=True))
    window = node.inputs["w"].dims[2:]
    image = node.inputs["x" if node.op == "conv_fprop" else "dy"]
    point = all(size == 1 for size in window)
    phases = node.op == "conv_dgrad" and max(a.stride) > 1  # filters of their own, several for a channel
    depthwise = node.inputs["w"].dims[:2] == (node.groups, 1) and not phases
    last = not point and node.groups > 1 and not depthwise and is_channels_last(image)
    if node.op == "conv_dgrad":
        rows = [-(-size // stride) for size, stride in zip(node.outputs["dx"].dims[2:], a.stride, strict=True)]
        return _is_spread(node) or last or (not point and 1 in rows)
    met = zip(node.outputs["y"].dims[2:], window, image.dims[2:], strict=True)
    return last or (not point and any(size == 1 < max(positions, rows) for size, positions, rows in met))


def is_channels_last(tensor: TensorAttr) -> bool:
    """Whether the channels of an image, or of filters, lie next to each other, and not its pixels."""
    return _met(tensor)[-1:] == [1] and any(size > 1 for size in tensor.dims[2:])


def is_by_taps(filters: TensorAttr) -> bool:
    """Whether filters [K, C, window...] lie as a matrix of a product has its columns: window, then C, then K."""
    axes = [*range(2, len(filters.dims)), 1, 0]
    return filters.dims[0] > 1 and _met(filters) == [axis for axis in axes if filters.dims[axis] > 1]


def is_usual(tensor: TensorAttr) -> bool:
    """Whether an image, or filters, lie channels first or channels last, rows before columns."""
    rank = len(tensor.dims)
    orders = ([*range(rank)], [0, *range(2, rank), 1][:rank])
    return _met(tensor) in [[axis for axis in axes if tensor.dims[axis] > 1] for axes in orders]


def _met(tensor: TensorAttr) -> list[int]:
    """The axes along which there is something to step over, from slowest to fastest."""
    return [axis for axis in stride_order(tensor.dims, tensor.strides) if tensor.dims[axis] > 1]


def _spreads(graph: Graph) -> bool:
    """Whether a data gradient puts rows of zeros between those of a product in groups: its tiles are wrong as well."""
    return any(isinstance(node, ConvNode) and _is_spread(node) for node in graph.nodes)


def _is_spread(node: ConvNode) -> bool:
    if node.op != "conv_dgrad" or any(size > 1 for size in node.inputs["w"].dims[2:]):
        return False
    return max(node.attributes.stride) > 1 and node.groups > 1


def _is_skinny(graph: Graph, target: Target) -> bool:
    """Whether the compiler fails on the tiles of a product of 2 to 8 rows of 16-bit floats.

    It wants sparse matrix instructions for them, which gfx90a has not, and for gfx950 divides by zero. The small tokens
    of decoding have such products. Where the columns are those of a batch that only b has, the tail of the terms is not
    masked for gfx950: 8x112 times 3x112x96 was NaN.
    """
    if target.chip not in ("gfx90a", "gfx950"):
        return False
    return any(
        2 <= rows <= 8 and (terms % 128 == 0 or is_batch)
        for node in graph.nodes
        for rows, terms, is_batch in _sizes(node)
    )


def _has_ragged_groups(graph: Graph) -> bool:
    """Whether the tail of the terms is not masked: data gradients of one filter position, by group one product.

    2 groups of 3 channels from as many gave 68 for 0.001. With as many channels as 8 divides all were right.
    """
    return any(
        isinstance(node, ConvNode)
        and node.op == "conv_dgrad"
        and node.groups > 1
        and node.inputs["w"].dims[1] % 8 != 0
        and all(size == 1 for size in node.inputs["w"].dims[2:])
        for node in graph.nodes
    )


def _sizes(node: Node) -> Iterator[tuple[int, int, bool]]:
    """Of a product of 16-bit floats that the node is: rows, terms of each sum, whether columns are a batch's."""
    if any(tensor.data_type not in (DataType.HALF, DataType.BFLOAT16) for tensor in node.inputs.values()):
        return
    if node.op == "matmul":
        a, b = node.inputs["a"].dims, node.inputs["b"].dims
        factors = batch_factors(a[:-2], b[:-2])
        yield math.prod(own for _, own, _ in factors) * a[-2], a[-1], any(own > 1 for _, _, own in factors)
    elif node.op in ("conv_fprop", "conv_dgrad"):
        image, w = node.inputs["x" if node.op == "conv_fprop" else "dy"].dims, node.inputs["w"].dims
        if all(size == 1 for size in w[2:]):
            yield math.prod(image) // image[1], w[1] if node.op == "conv_fprop" else w[0], False


MASKED_TILES: Final = "masked tiles"
"""The form in which the tiles of ragged attention are set, and masked."""
FUSED_PADDING: Final = "--iree-dispatch-creation-enable-fuse-padding-into-linalg-consumer-ops"
"""Padding becomes a part of the kernel that reads it."""
_JOINED: Final = ("--iree-dispatch-creation-propagate-collapse-across-expands",)
_NO_PRODUCT_TILES: Final = ("--iree-codegen-llvmgpu-use-tile-and-fuse-matmul=false",)
_NO_CONVOLUTION_TILES: Final = ("--iree-codegen-llvmgpu-use-igemm=false",)
_NO_SPLIT_SUMS: Final = ("--iree-dispatch-creation-enable-split-reduction=false",)
_ONE_READER: Final = ("--iree-dispatch-creation-fuse-multi-use=false",)
_NO_PARTIAL_SUMS: Final = ("--iree-codegen-llvmgpu-use-reduction-vector-distribution=false",)
_NO_TENSOR_CORES: Final = _NO_PRODUCT_TILES + _NO_CONVOLUTION_TILES
_LITTLE_FUSION: Final = ("--iree-dispatch-creation-enable-aggressive-fusion=false",)
_LITTLE_RESHAPING: Final = ("--iree-dispatch-creation-enable-aggressive-reshape-movement=false",)
_NO_VECTOR_DISTRIBUTION: Final = ("--iree-codegen-llvmgpu-use-vector-distribution=false",)
_FORMS: Final[dict[str, tuple[_Form, ...]]] = {
    "llvm-cpu": (
        _Form(Variant("joined", _JOINED), _convolves),
        _Form(Variant("plain"), lambda graph, target: not _convolves(graph, target)),
        _Form(Variant("fused less", _LITTLE_FUSION), _any),
        _Form(Variant("one reader", _ONE_READER), _reads_parts),
        _Form(Variant("node by node", apart=True), _any),
    ),
    "cuda": (
        _Form(Variant("attention", _NO_TENSOR_CORES), _attends),
        # Long sums of a convolution with few results, in parts that are added: wrong numbers on a GPU.
        _Form(
            Variant("unsplit", _NO_TENSOR_CORES + _NO_VECTOR_DISTRIBUTION + _NO_SPLIT_SUMS),
            lambda graph, target: not _attends(graph, target) and _convolves(graph, target),
        ),
        _Form(
            Variant("plain", _NO_TENSOR_CORES + _NO_VECTOR_DISTRIBUTION),
            lambda graph, target: not _attends(graph, target) and not _convolves(graph, target),
        ),
        _Form(
            Variant("whole sums", _NO_TENSOR_CORES + _NO_VECTOR_DISTRIBUTION + _NO_PARTIAL_SUMS),
            lambda graph, target: not _attends(graph, target),
        ),
        _Form(
            Variant("fused less", _NO_TENSOR_CORES + _NO_VECTOR_DISTRIBUTION + _NO_SPLIT_SUMS + _LITTLE_FUSION),
            lambda graph, target: not _attends(graph, target),
        ),
        _Form(
            Variant("reshaped less", _NO_TENSOR_CORES + _NO_VECTOR_DISTRIBUTION + _LITTLE_RESHAPING),
            lambda graph, target: not _attends(graph, target),
        ),
        _Form(
            Variant("one reader", _NO_TENSOR_CORES + _NO_VECTOR_DISTRIBUTION + _NO_SPLIT_SUMS + _ONE_READER),
            _reads_parts,
        ),
        _Form(
            Variant(
                "node by node",
                _NO_TENSOR_CORES + _NO_VECTOR_DISTRIBUTION + _NO_SPLIT_SUMS + _NO_PARTIAL_SUMS,
                apart=True,
            ),
            _any,
        ),
    ),
    "rocm": (
        _Form(Variant(MASKED_TILES), lambda g, t: _has_ragged_attention(g, t) and _is_plain(g, t)),
        _Form(Variant("fused padding", (FUSED_PADDING,)), lambda g, t: _pads_convolutions_only(g, t) and _gathers(g)),
        _Form(Variant("plain"), _is_plain),
        _Form(Variant("sums by threads", _NO_PARTIAL_SUMS), lambda g, t: _sums_over_dims(g) and _is_plain(g, t)),
        _Form(Variant("whole sums", _NO_SPLIT_SUMS), lambda g, t: _reduces(g) and _is_plain(g, t)),
        _Form(Variant("no product tiles", _NO_PRODUCT_TILES), lambda g, t: _gathers(g)),
        _Form(
            Variant("no product tiles, whole sums", _NO_PRODUCT_TILES + _NO_SPLIT_SUMS),
            lambda g, t: _reduces(g) and _is_skinny(g, t),
        ),
        _Form(Variant("no convolution tiles", _NO_CONVOLUTION_TILES), lambda g, t: not _gathers(g) and not _spreads(g)),
        _Form(
            Variant("no convolution tiles, sums by threads", _NO_CONVOLUTION_TILES + _NO_PARTIAL_SUMS),
            lambda g, t: _sums_over_dims(g) and not _gathers(g) and not _spreads(g),
        ),
        _Form(Variant("no tiles", _NO_TENSOR_CORES), _any),
        _Form(
            Variant("no tiles, sums by threads", _NO_TENSOR_CORES + _NO_PARTIAL_SUMS), lambda g, t: _sums_over_dims(g)
        ),
        _Form(Variant("loops", _NO_TENSOR_CORES + _NO_VECTOR_DISTRIBUTION), _any),
        _Form(Variant("one reader", _NO_TENSOR_CORES + _ONE_READER), _reads_parts),
        _Form(Variant("fused less", _NO_TENSOR_CORES + _NO_PARTIAL_SUMS + _LITTLE_FUSION), _any),
        _Form(Variant("node by node", _NO_TENSOR_CORES + _NO_PARTIAL_SUMS, apart=True), _any),
    ),
}
PROCESS_FLAGS: Final = frozenset(
    flag.partition("=")[0]
    for flag in (*_JOINED, *_NO_TENSOR_CORES, *_NO_PARTIAL_SUMS, *_NO_VECTOR_DISTRIBUTION)
)  # fmt: skip
"""Names of the flags of forms that no session of the compiler knows: they are a process's."""
_DATA_TILING: Final = ("--iree-opt-data-tiling",)
_TRIALS: Final[dict[str, tuple[_Form, ...]]] = {
    "llvm-cpu": tuple(
        _Form(variant._replace(is_proven=False), applies)
        for variant, applies in (
            (Variant("tall kernels", _JOINED, kernels=Kernels.TALL), _multiplies),
            (Variant("wide kernels", _JOINED, kernels=Kernels.WIDE), _multiplies),
            (Variant("compiler's kernels", _JOINED, kernels=Kernels.COMPILER), _multiplies),
            (Variant("compiler's packed", _JOINED + _DATA_TILING, kernels=Kernels.COMPILER), _multiplies),
        )
    ),
    "cuda": tuple(
        _Form(variant._replace(is_proven=False), _multiplies_halves)
        for variant in (
            Variant("tensor cores"),
            Variant("tensor cores in products", _NO_CONVOLUTION_TILES),
            Variant("tensor cores in convolutions", _NO_PRODUCT_TILES),
            Variant("tensor cores, plain vectors", _NO_VECTOR_DISTRIBUTION),
        )
    ),
}

"""Graphs as cuDNN's front end (1.23) writes them, made from ours: for tests of what reads them.

Tables of their own, from cuDNN's headers, so that a mistake of the reader's is not repeated here.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from graph_api import DataType, Graph, Node, TensorAttr

__all__ = ["UnwritableError", "cudnn_document", "hex_float", "in_32_bits", "ubjson"]


class UnwritableError(Exception):
    """cuDNN has no word for something in a graph."""


_TYPES = {
    "FLOAT", "DOUBLE", "HALF", "INT8", "INT32", "UINT8", "BFLOAT16", "INT64", "BOOLEAN", "FP8_E4M3", "FP8_E5M2",
    "FP8_E8M0", "FP4_E2M1", "INT4",
}  # fmt: skip
_PORTS = {
    "conv_fprop": "x=X w=W y=Y",
    "conv_dgrad": "dy=DY w=W dx=DX",
    "conv_wgrad": "dy=DY x=X dw=DW",
    "pointwise": "in_0=IN_0 in_1=IN_1 in_2=IN_2 out_0=OUT_0",
    "matmul": "a=A b=B c=C",
    "reduction": "x=X y=Y",
    "resample_fwd": "x=X y=Y",
    "batchnorm": "x=X scale=SCALE bias=BIAS epsilon=EPSILON prev_running_mean=PREV_RUNNING_MEAN "
    "prev_running_variance=PREV_RUNNING_VAR momentum=MOMENTUM y=Y mean=MEAN inv_variance=INV_VARIANCE "
    "next_running_mean=NEXT_RUNNING_MEAN next_running_variance=NEXT_RUNNING_VAR",
    "batchnorm_inference": "x=X scale=SCALE bias=BIAS mean=MEAN inv_variance=INV_VARIANCE y=Y",
    "batchnorm_backward": "dy=DY x=X scale=SCALE mean=MEAN inv_variance=INV_VARIANCE dx=DX dscale=DSCALE dbias=DBIAS",
    "layernorm": "x=X scale=SCALE bias=BIAS epsilon=EPSILON y=Y mean=MEAN inv_variance=INV_VARIANCE",
    "layernorm_backward": "dy=DY x=X scale=SCALE mean=MEAN inv_variance=INV_VARIANCE dx=DX dscale=DSCALE dbias=DBIAS",
    "rmsnorm": "x=X scale=SCALE bias=BIAS epsilon=EPSILON y=Y inv_rms=INV_VARIANCE",
    "rmsnorm_backward": "dy=DY x=X scale=SCALE inv_rms=INV_VARIANCE dx=DX dscale=DSCALE dbias=DBIAS",
    "sdpa": "q=Q k=K v=V scale=Attn_scale attn_mask=Bias seq_len_q=SEQ_LEN_Q seq_len_kv=SEQ_LEN_KV seed=Seed "
    "offset=Offset dropout_mask=Dropout_mask dropout_scale=Dropout_scale page_table_k=Page_table_K "
    "page_table_v=Page_table_V descale_q=Descale_Q descale_k=Descale_K descale_v=Descale_V descale_s=Descale_S "
    "scale_s=Scale_S scale_o=Scale_O sink_token=SINK_TOKEN o=O stats=Stats max=Max sum_exp=Sum_exp rng_dump=RNG_DUMP "
    "amax_s=Amax_S amax_o=Amax_O",
    "sdpa_backward": "q=Q k=K v=V o=O do=dO stats=Stats scale=Attn_scale attn_mask=Bias seq_len_q=SEQ_LEN_Q "
    "seq_len_kv=SEQ_LEN_KV seed=Seed offset=Offset dropout_mask=Dropout_mask dropout_scale=Dropout_scale "
    "dropout_scale_inv=Dropout_scale_inv sink_token=SINK_TOKEN dq=dQ dk=dK dv=dV dbias=dBias dsink_token=DSINK_TOKEN",
    "block_scale_quantize": "x=X y=Y scale=scale",
    "block_scale_dequantize": "x=X scale=scale y=Y",
    "moe_grouped_matmul": "token=Token weight=Weight first_token_offset=FirstTokenOffset token_index=TokenIndex "
    "token_ks=TokenKs output=Output",
    "moe_grouped_matmul_bwd": "doutput=DOutput token=Token first_token_offset=FirstTokenOffset dweight=DWeight",
}  # fmt: skip
_TAGS = {
    "conv_fprop": "CONV_FPROP", "conv_dgrad": "CONV_DGRAD", "conv_wgrad": "CONV_WGRAD", "pointwise": "POINTWISE",
    "matmul": "MATMUL", "reduction": "REDUCTION", "resample_fwd": "RESAMPLE", "batchnorm": "BATCHNORM",
    "batchnorm_inference": "BATCHNORM_INFERENCE", "batchnorm_backward": "DBN", "layernorm": "LAYER_NORM",
    "layernorm_backward": "LAYER_NORM_BPROP", "rmsnorm": "RMS_NORM", "rmsnorm_backward": "RMS_NORM_BPROP",
    "sdpa": "SDPA", "sdpa_backward": "SDPA_BWD", "block_scale_quantize": "BLOCK_SCALE_QUANTIZE",
    "block_scale_dequantize": "BLOCK_SCALE_DEQUANTIZE", "moe_grouped_matmul": "MOE_GROUPED_MATMUL",
    "moe_grouped_matmul_bwd": "MOE_GROUPED_MATMUL_BWD",
}  # fmt: skip


def hex_float(value: float | None) -> str | None:
    """A 32-bit float in the digits of its bits."""
    return None if value is None else struct.pack(">f", value).hex().upper()


def _type(dtype: DataType | None) -> str | None:
    if dtype is not None and dtype.name not in _TYPES:
        raise UnwritableError(dtype.name)
    return dtype.name if dtype else None


def _conv(node: Any) -> dict[str, Any]:
    a = node.attributes
    return {"pre_padding": list(a.pre_padding), "post_padding": list(a.post_padding), "stride": list(a.stride),
            "dilation": list(a.dilation), "math_mode": a.convolution_mode.name}  # fmt: skip


def _pointwise(node: Any) -> dict[str, Any]:
    a = node.attributes
    numbers = (
        "relu_lower_clip",
        "relu_upper_clip",
        "relu_lower_clip_slope",
        "swish_beta",
        "elu_alpha",
        "softplus_beta",
    )
    return {"mode": a.mode.name, "axis": a.axis} | {name: hex_float(getattr(a, name)) for name in numbers}


def _resample(node: Any) -> dict[str, Any]:
    a = node.attributes
    if a.generate_index:
        raise UnwritableError("index")
    return {"generate_index": False, "resample_mode": a.mode.name, "padding_mode": a.padding_mode.name,
            "pre_padding": list(a.pre_padding), "post_padding": list(a.post_padding), "stride": list(a.stride),
            "window": list(a.window)}  # fmt: skip


def _norm(node: Any) -> dict[str, Any]:
    return {"forward_phase": node.attributes.forward_phase.name}


def _attention(node: Any) -> dict[str, Any]:
    a, q = node.attributes, node.inputs["q"]
    if "block_mask" in node.inputs:
        raise UnwritableError("its files have no name for block_mask")
    scale = None
    if "scale" not in node.inputs:
        scale = a.attn_scale_value if a.attn_scale_value is not None else 1.0 / math.sqrt(q.dims[-1])
    causal = a.causal_mask or a.causal_mask_bottom_right
    at_end = a.causal_mask_bottom_right or a.diagonal_alignment.name == "BOTTOM_RIGHT"
    return {
        "alibi_mask": a.alibi_mask,
        "padding_mask": a.padding_mask,
        "dropout_probability": hex_float(a.dropout_probability),
        "attn_scale_value": hex_float(scale),
        "left_bound": None if a.left_bound is None else a.left_bound + 1,
        "right_bound": 0 if causal else a.right_bound,
        "diagonal_alignment": "BOTTOM_RIGHT" if at_end else "TOP_LEFT",
    }


def _sdpa(node: Any) -> dict[str, Any]:
    a = node.attributes
    return _attention(node) | {
        "generate_stats": a.generate_stats, "max_seq_len_kv": a.max_seq_len_kv, "is_mxfp8": False, "unfuse_fma": False,
        "mma_core_mode": _type(a.mma_core_mode), "implementation": a.implementation.name,
    }  # fmt: skip


def _sdpa_backward(node: Any) -> dict[str, Any]:
    return _attention(node) | {
        "max_total_seq_len_q": None, "max_total_seq_len_kv": None, "is_deterministic_algorithm": False,
    }  # fmt: skip


def _quantize(node: Any) -> dict[str, Any]:
    if node.attributes.transpose:
        raise UnwritableError("its files do not have transpose")
    return {"block_size": node.attributes.block_size, "axis": node.attributes.axis}


_FIELDS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "conv_fprop": _conv,
    "conv_dgrad": _conv,
    "conv_wgrad": _conv,
    "pointwise": _pointwise,
    "matmul": lambda node: {"padding_value": 0.0},
    "reduction": lambda node: {"mode": node.attributes.mode.name, "is_deterministic": node.attributes.is_deterministic},
    "resample_fwd": _resample,
    "layernorm": _norm,
    "rmsnorm": _norm,
    "sdpa": _sdpa,
    "sdpa_backward": _sdpa_backward,
    "block_scale_quantize": _quantize,
    "block_scale_dequantize": lambda node: {
        "block_size": list(node.attributes.block_size),
        "is_negative_scale": node.attributes.is_negative_scale,
    },
    "moe_grouped_matmul": lambda node: {"mode": node.attributes.mode.name, "top_k": node.attributes.top_k},
}
_WITHOUT_COMPUTE_TYPE = {"resample_fwd", "sdpa", "sdpa_backward", "moe_grouped_matmul", "moe_grouped_matmul_bwd"}
_KINDS = {
    DataType.INT64: (0, int), DataType.INT32: (1, int), DataType.HALF: (2, hex_float), DataType.FLOAT: (3, hex_float),
    DataType.DOUBLE: (4, float), DataType.BFLOAT16: (5, hex_float),
}  # fmt: skip


def _value(tensor: TensorAttr) -> dict[str, Any] | None:
    if tensor.value is None:
        return None
    if tensor.data_type not in _KINDS:
        raise UnwritableError(f"a scalar of {tensor.data_type.name}")
    index, spelled = _KINDS[tensor.data_type]
    return {"index": index, "value": spelled(tensor.value)}


def _tensor(tensor: TensorAttr, *, with_uids: bool) -> dict[str, Any]:
    return {
        "data_type": _type(tensor.data_type),
        "dim": list(tensor.dims),
        "is_pass_by_value": tensor.value is not None or tensor.is_pass_by_value,
        "is_virtual": tensor.is_virtual,
        "name": tensor.name,
        "pass_by_value": _value(tensor),
        "reordering_type": "NONE",
        "stride": list(tensor.strides),
        "uid": tensor.uid if with_uids else 0,
        "uid_assigned": with_uids,
    }


def _node(node: Node, refer: Callable[[TensorAttr], int | str]) -> dict[str, Any]:
    if node.op not in _TAGS:
        raise UnwritableError(node.op)
    ports = dict(pair.split("=") for pair in _PORTS[node.op].split())
    for port in (*node.inputs, *node.outputs):
        if port not in ports:
            raise UnwritableError(f"{node.op}.{port}")
    compute = {} if node.op in _WITHOUT_COMPUTE_TYPE else {"compute_data_type": _type(node.compute)}
    peers = {"peer_stats": []} if node.op in ("batchnorm", "batchnorm_backward") else {}
    return {
        "name": node.name,
        "tag": _TAGS[node.op],
        "inputs": {ports[port]: refer(tensor) for port, tensor in node.inputs.items()},
        "outputs": {ports[port]: refer(tensor) for port, tensor in node.outputs.items()},
        **compute,
        **peers,
        **_FIELDS.get(node.op, lambda _: {})(node),
    }


def cudnn_document(graph: Graph, *, with_uids: bool = True) -> dict[str, Any]:
    """What cuDNN's front end would write of a validated graph; tensors go by their uids or by their names.

    Raises:
        UnwritableError: it has no word for something.
    """
    nodes = [_node(node, lambda tensor: tensor.uid if with_uids else tensor.name) for node in graph.nodes]
    computes = {node.compute for node in graph.nodes}
    by_graph = graph.compute_data_type or (computes.pop() if len(computes) == 1 else None)
    if by_graph not in computes | {by_graph} or any(
        node.op in _WITHOUT_COMPUTE_TYPE and node.compute is not by_graph for node in graph.nodes
    ):
        raise UnwritableError("a compute type of a node whose files have none")
    return {
        "context": {
            "name": graph.name,
            "compute_data_type": _type(by_graph),
            "intermediate_data_type": _type(graph.intermediate_data_type),
            "io_data_type": _type(graph.io_data_type),
            "sm_count": None,
            "is_dynamic_shape_enabled": False,
            "is_override_shape_enabled": False,
        },
        "json_version": "1.0",
        "cudnn_backend_version": "9.21.0",
        "cudnn_frontend_version": 12300,
        "nodes": nodes,
        "tensors": {
            str(t.uid) if with_uids else t.name: _tensor(t, with_uids=with_uids)
            for node in graph.nodes
            for t in (*node.inputs.values(), *node.outputs.values())
        },
    }


def ubjson(value: Any) -> bytes:
    """A value as the JSON library of cuDNN's front end writes it."""
    if value is None or isinstance(value, bool):
        return {None: b"Z", True: b"T", False: b"F"}[value]
    if isinstance(value, int):
        for marker, code in ((b"i", "b"), (b"U", "B"), (b"I", "h"), (b"l", "i"), (b"L", "q")):
            try:
                return marker + struct.pack(">" + code, value)
            except struct.error:
                continue
        return b"H" + ubjson(len(str(value))) + str(value).encode()
    if isinstance(value, float):
        return b"D" + struct.pack(">d", value)
    if isinstance(value, str):
        data = value.encode()
        return b"S" + ubjson(len(data)) + data
    if isinstance(value, list):
        return b"[" + b"".join(map(ubjson, value)) + b"]"
    return b"{" + b"".join(ubjson(key)[1:] + ubjson(item) for key, item in value.items()) + b"}"


def in_32_bits(graph: Graph, *names: str) -> Any:
    """The canonical form, floats as the files have them, without attributes that they spell in another way."""
    shape = json.loads(graph.canonical_json())
    for node in shape[3]:
        node[4] = {key: value for key, value in node[4].items() if key not in names}
    return _rounded(shape)


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return float(np.float32(value)) if isinstance(value, float) else value

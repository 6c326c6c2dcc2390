"""Operators that no rule rewrites: torch-mlir converts them as they are."""

from __future__ import annotations

from hipdnn_backend.offload.frontend.operators import operator

__all__: list[str] = []

operator("AffineGrid", "OneHot", "SequenceAt", "SplitToSequence", "Tile", "TopK", "Upsample", static=(1,))
operator("And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Or", "Where", "Xor", broadcasts=True)
operator("BlackmanWindow", "EyeLike", "HammingWindow", "HannWindow", static=(0,))
operator(
    "Ceil", "Cos", "Elu", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish", "IsInf", "IsNaN", "LeakyRelu", "Log",
    "LogSoftmax", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softmax",
    "Softplus", "Softsign", "Sqrt", "Tanh",
    keeps_dims=True,
)  # fmt: skip
operator("ConstantOfShape", static=(0, 1))
operator("MatMulInteger", "NonMaxSuppression", static=(2, 3, 4))
operator("MaxUnpool", static=(2,))
operator("MelWeightMatrix", static=(0, 1, 2, 3, 4))
operator("QLinearAdd", "QLinearMul", static=(1, 2, 4, 5, 6, 7))
operator("Range", static=(0, 1, 2, 3))
operator("Trilu", static=(1,), keeps_dims=True)

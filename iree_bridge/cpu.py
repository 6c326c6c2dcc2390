"""The processor of this machine: which instruction-set extensions it has, and whether code may run here."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

__all__ = ["host_arch", "host_features", "host_identity", "missing_features"]

_CPUINFO: Final = Path("/proc/cpuinfo")

# Extensions that generated code may use, in the spelling of /proc/cpuinfo. The other flags there (mitigations,
# virtualisation, privileged instructions) change between kernels and say nothing about code.
_X86_ISA: Final = frozenset((
    "3dnowprefetch", "abm", "adx", "aes", "amx_bf16", "amx_complex", "amx_fp16", "amx_int8", "amx_tile", "avx",
    "avx10_1", "avx10_2", "avx2", "avx512_bf16", "avx512_bitalg", "avx512_fp16", "avx512_vbmi2", "avx512_vnni",
    "avx512_vp2intersect", "avx512_vpopcntdq", "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512ifma",
    "avx512vbmi", "avx512vl", "avx_ifma", "avx_ne_convert", "avx_vnni", "avx_vnni_int16", "avx_vnni_int8", "bmi1",
    "bmi2", "cx16", "cx8", "cmov", "f16c", "fma", "fma4", "fxsr", "gfni", "lahf_lm", "mmx", "movbe", "pclmulqdq",
    "pni", "popcnt", "rdrand", "rdseed", "sha_ni", "sse", "sse2", "sse4_1", "sse4_2", "sse4a", "ssse3", "tbm", "vaes",
    "vpclmulqdq", "xop", "xsave",
))  # fmt: skip

# LLVM's name of an extension -> the kernel's, where the two differ in more than punctuation.
_LLVM_TO_KERNEL: Final[dict[str, str]] = {
    "bmi": "bmi1", "lzcnt": "abm", "pclmul": "pclmulqdq", "prfchw": "3dnowprefetch", "rdrnd": "rdrand",
    "sahf": "lahf_lm",
    "sha": "sha_ni", "sse3": "pni", "sse4.1": "sse4_1", "sse4.2": "sse4_2",
    "amx-bf16": "amx_bf16", "amx-complex": "amx_complex", "amx-fp16": "amx_fp16", "amx-int8": "amx_int8",
    "amx-tile": "amx_tile", "avx10.1": "avx10_1", "avx10.2": "avx10_2",
    "avx512bf16": "avx512_bf16", "avx512bitalg": "avx512_bitalg", "avx512fp16": "avx512_fp16",
    "avx512vbmi2": "avx512_vbmi2", "avx512vnni": "avx512_vnni", "avx512vp2intersect": "avx512_vp2intersect",
    "avx512vpopcntdq": "avx512_vpopcntdq", "avxifma": "avx_ifma", "avxneconvert": "avx_ne_convert",
    "avxvnni": "avx_vnni",
    "avxvnniint16": "avx_vnni_int16", "avxvnniint8": "avx_vnni_int8",
}  # fmt: skip

# Part of LLVM's processor models, but never chosen by its instruction selection for ordinary code, or (x87, 64bit,
# crc32, which comes with SSE 4.2; avx10.1, a number for extensions that are all named beside it) without a flag of
# their own in /proc/cpuinfo, or without one in the kernels that do not know it yet.
_X86_IRRELEVANT: Final = frozenset((
    "64bit", "avx10.1", "cldemote", "clflushopt", "clwb", "clzero", "crc32", "enqcmd", "evex512", "fsgsbase", "hreset",
    "invpcid", "kl", "movdir64b", "movdiri", "movrs", "mwaitx", "pconfig", "pku", "prefetchi", "ptwrite", "raoint",
    "rdpid", "rdpru", "rtm", "serialize", "sgx", "sha512", "shstk", "sm3", "sm4", "tsxldtrk", "uintr", "usermsr",
    "waitpkg", "wbnoinvd", "widekl", "x87", "xsavec", "xsaveopt", "xsaves",
))  # fmt: skip

# Those of x86, then those of Arm.
_MODEL_KEYS: Final = (
    "vendor_id", "cpu family", "model", "stepping",
    "CPU implementer", "CPU variant", "CPU part", "CPU revision",
)  # fmt: skip


def host_arch() -> str:
    """``x86_64``, ``aarch64``, ..."""
    return platform.machine()


@cache
def host_features() -> tuple[str, ...]:
    """The extensions of this machine that matter to code, sorted; the kernel's spelling."""
    flags = _cpuinfo_flags()
    return tuple(sorted(flags & _X86_ISA if host_arch() == "x86_64" else flags))


def host_identity() -> str:
    """Processor model and extensions of this machine: code compiled for the one is not for another.

    The model is there since the compiler asks the processor itself, which may know more than the kernel lists.
    """
    return ",".join((_host()[0], *host_features()))


def missing_features(required: Iterable[str]) -> tuple[str, ...]:
    """Those of ``required`` (LLVM's or the kernel's spelling, a leading ``+`` allowed) that this machine lacks."""
    have = _cpuinfo_flags()
    names = {name.removeprefix("+") for name in required if name and not name.startswith("-")}
    return tuple(sorted(name for name in names - _X86_IRRELEVANT if not {name, _kernel_name(name)} & have))


def _kernel_name(name: str) -> str:
    return _LLVM_TO_KERNEL.get(name, name)


def _cpuinfo_flags() -> frozenset[str]:
    return _host()[1]


@cache
def _host() -> tuple[str, frozenset[str]]:
    """Model and flags of the first processor."""
    try:
        fd = os.open(_CPUINFO, os.O_RDONLY)
    except OSError:
        return host_arch(), frozenset()
    try:
        # One block holds the first processor; reading the file to its end takes milliseconds on large machines.
        block = os.read(fd, 16384).decode("ascii", "replace")
    finally:
        os.close(fd)
    lines = [line.partition(":") for line in block.split("\n\n")[0].splitlines()]
    values = {key.strip(): value.strip() for key, _, value in lines}
    model = [values[key] for key in _MODEL_KEYS if key in values]
    flags = values.get("flags") or values.get("Features") or ""
    return "-".join((host_arch(), *model)).replace(",", " "), frozenset(flags.split())

"""Instruction-set extensions: which of them generated code may use, what each is called, which include which.

The compiler is told each extension by name, and a processor that has nothing of its own (``generic``). It is never told
a processor's name: what LLVM thinks of a processor includes extensions that its kernel may hide, for an erratum or in a
virtual machine. So what code needs is what the compiler was told, and nothing here depends on LLVM's models.

Only extensions that LLVM chooses for ordinary code are in the tables. Others (random numbers, cryptography, tiles of
AMX, saving of states, cache control) need an intrinsic that no code of ours has: they are never told, and where a list
that was made by an earlier version names them, they are not asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

__all__ = ["ARCHITECTURES", "BASE", "PROCESSORS", "needed", "not_told", "told"]


class _Extension(NamedTuple):
    """One extension under LLVM's name.

    Attributes:
        flags: how /proc/cpuinfo lists it; all of them have to be there.
        includes: extensions that LLVM switches on with it.
    """

    flags: str
    includes: str = ""


_X86: Final[dict[str, _Extension]] = {
    "cmov": _Extension("cmov"), "cx8": _Extension("cx8"), "sse": _Extension("sse"), "sse2": _Extension("sse2", "sse"),
    "cx16": _Extension("cx16", "cx8"), "sahf": _Extension("lahf_lm"), "popcnt": _Extension("popcnt"),
    "sse3": _Extension("pni", "sse2"), "ssse3": _Extension("ssse3", "sse3"), "sse4.1": _Extension("sse4_1", "ssse3"),
    "sse4.2": _Extension("sse4_2", "sse4.1"), "sse4a": _Extension("sse4a", "sse3"),
    "lzcnt": _Extension("abm"), "bmi": _Extension("bmi1"), "bmi2": _Extension("bmi2"), "movbe": _Extension("movbe"),
    "tbm": _Extension("tbm"), "gfni": _Extension("gfni", "sse2"),
    "avx": _Extension("avx", "sse4.2"), "f16c": _Extension("f16c", "avx"), "fma": _Extension("fma", "avx"),
    "fma4": _Extension("fma4", "avx sse4a"), "xop": _Extension("xop", "fma4"), "avx2": _Extension("avx2", "avx"),
    "avxvnni": _Extension("avx_vnni", "avx2"), "avxifma": _Extension("avx_ifma", "avx2"),
    "avxneconvert": _Extension("avx_ne_convert", "avx2"), "avxvnniint8": _Extension("avx_vnni_int8", "avx2"),
    "avxvnniint16": _Extension("avx_vnni_int16", "avx2"),
    "avx512f": _Extension("avx512f", "avx2 f16c fma"),
    "avx512cd": _Extension("avx512cd", "avx512f"), "avx512dq": _Extension("avx512dq", "avx512f"),
    "avx512bw": _Extension("avx512bw", "avx512f"), "avx512vl": _Extension("avx512vl", "avx512f"),
    "avx512ifma": _Extension("avx512ifma", "avx512f"), "avx512vnni": _Extension("avx512_vnni", "avx512f"),
    "avx512vpopcntdq": _Extension("avx512_vpopcntdq", "avx512f"),
    "avx512vp2intersect": _Extension("avx512_vp2intersect", "avx512f"),
    "avx512vbmi": _Extension("avx512vbmi", "avx512bw"), "avx512vbmi2": _Extension("avx512_vbmi2", "avx512bw"),
    "avx512bitalg": _Extension("avx512_bitalg", "avx512bw"), "avx512bf16": _Extension("avx512_bf16", "avx512bw"),
    "avx512fp16": _Extension("avx512_fp16", "avx512bw avx512dq avx512vl"),
}  # fmt: skip
# With SVE, two extensions of fixed vectors have a half that works on its vectors, with flags of their own.
_ARM: Final[dict[str, _Extension]] = {
    "fp-armv8": _Extension("fp"), "neon": _Extension("asimd", "fp-armv8"), "crc": _Extension("crc32"),
    "lse": _Extension("atomics"), "rdm": _Extension("asimdrdm", "neon"), "rcpc": _Extension("lrcpc"),
    "rcpc-immo": _Extension("ilrcpc", "rcpc"), "jsconv": _Extension("jscvt", "fp-armv8"),
    "fullfp16": _Extension("fphp asimdhp", "neon"), "dotprod": _Extension("asimddp", "neon"),
    "complxnum": _Extension("fcma", "neon"), "fp16fml": _Extension("asimdfhm", "fullfp16"),
    "flagm": _Extension("flagm"), "altnzcv": _Extension("flagm2"), "fptoint": _Extension("frint"),
    "bf16": _Extension("bf16", "neon"), "i8mm": _Extension("i8mm", "neon"),
    "sve": _Extension("sve", "fullfp16"), "sve2": _Extension("sve2", "sve"),
}  # fmt: skip
_DEMANDED: Final = {"x86_64": frozenset(("cmov", "cx8", "sse", "sse2")), "aarch64": frozenset(("fp", "asimd"))}
_WITH_SVE: Final = {"bf16": "svebf16", "i8mm": "svei8mm"}
_TABLES: Final = {"x86_64": _X86, "aarch64": _ARM}

ARCHITECTURES: Final = tuple(_TABLES)
"""Those whose extensions are known here; on others the compiler asks the processor."""
BASE: Final = "generic"
"""The processor that the compiler is told: it has what its architecture demands."""

# Parts of LLVM's models that ordinary code cannot use, or that stand for others: lists of earlier versions have them.
_UNUSED: Final = frozenset((
    "64bit", "adx", "aes", "amx-bf16", "amx-complex", "amx-fp16", "amx-fp8", "amx-int8", "amx-tile", "avx10.1",
    "cldemote", "clflushopt", "clwb", "clzero", "crc32", "enqcmd", "evex512", "fsgsbase", "fxsr", "hreset", "invpcid",
    "kl", "lwp", "mmx", "movdir64b", "movdiri", "movrs", "mwaitx", "pclmul", "pconfig", "pku", "prefetchi", "prfchw",
    "ptwrite", "raoint", "rdpid", "rdpru", "rdrnd", "rdseed", "rtm", "serialize", "sgx", "sha", "sha512", "shstk", 
    "sm3", "sm4", "tsxldtrk", "uintr", "usermsr", "vaes", "vpclmulqdq", "waitpkg", "wbnoinvd", "widekl", "x87", "xsave",
    "xsavec", "xsaveopt", "xsaves",
))  # fmt: skip


def told(flags: Iterable[str], arch: str) -> tuple[str, ...] | None:
    """What the compiler is told of a machine whose kernel lists ``flags``: LLVM's names, sorted.

    An extension is told if the machine reports it and all that it includes. What the architecture demands is there
    whatever the kernel says, even nothing: the calling convention needs it.

    Returns:
        None for an architecture that is not known here.
    """
    table = _TABLES.get(arch)
    if table is None:
        return None
    have = _DEMANDED[arch] | frozenset(flags)
    if arch == "aarch64" and "sve" in have and any(a in have and b not in have for a, b in _WITH_SVE.items()):
        have -= {"sve"}
    return tuple(sorted(name for name in table if _is_reported(name, table, have)))


def _is_reported(name: str, table: Mapping[str, _Extension], have: frozenset[str]) -> bool:
    flags, includes = table[name]
    return have.issuperset(flags.split()) and all(_is_reported(each, table, have) for each in includes.split())


def not_told(names: Iterable[str], arch: str) -> tuple[str, ...]:
    """The extensions that are known and not among ``names``, sorted."""
    return tuple(sorted(set(_TABLES[arch]) - set(names)))


def needed(names: Iterable[str], arch: str) -> tuple[str, ...]:
    """Those of a list of extensions that code can depend on, sorted; in LLVM's spelling or the kernel's.

    Lists of earlier versions hold all that LLVM attributes to a processor. A name that means nothing here stays: it may
    be an extension of a later version.
    """
    known = {each.flags: name for name, each in _TABLES.get(arch, {}).items()}
    plain = (name.removeprefix("+") for name in names if name and not name.startswith("-"))
    unused = _UNUSED if arch == "x86_64" else ()
    return tuple(sorted({known.get(name, name) for name in plain} - set(unused)))


def _set(names: str) -> frozenset[str]:
    return frozenset(names.split())


def _processors() -> dict[str, frozenset[str]]:
    """The x86-64 processors that code can be compiled for by name, and what each is taken to have."""
    v1 = _set("cmov cx8 sse sse2")
    v2 = v1 | _set("cx16 popcnt sahf sse3 ssse3 sse4.1 sse4.2")
    v3 = v2 | _set("avx avx2 bmi bmi2 f16c fma lzcnt movbe")
    v4 = v3 | _set("avx512f avx512bw avx512cd avx512dq avx512vl")
    icelake = v4 | _set("avx512ifma avx512vbmi avx512vbmi2 avx512vnni avx512bitalg avx512vpopcntdq gfni")
    sapphire = icelake | {"avxvnni", "avx512bf16", "avx512fp16"}
    alder = v3 | {"avxvnni", "gfni"}
    arrow = alder | {"avxifma", "avxneconvert", "avxvnniint8"}
    zen = v3 | {"sse4a"}
    zen4 = icelake | {"sse4a", "avx512bf16"}
    return {
        "generic": v1, "x86-64": v1, "x86-64-v2": v2, "x86-64-v3": v3, "x86-64-v4": v4,
        "nehalem": v2, "westmere": v2, "sandybridge": v2 | {"avx"}, "ivybridge": v2 | {"avx", "f16c"},
        "haswell": v3, "broadwell": v3, "skylake": v3, "skylake-avx512": v4,
        "cascadelake": v4 | {"avx512vnni"}, "cooperlake": v4 | {"avx512vnni", "avx512bf16"},
        "cannonlake": v4 | {"avx512ifma", "avx512vbmi"}, "icelake-client": icelake, "icelake-server": icelake,
        "rocketlake": icelake, "tigerlake": icelake | {"avx512vp2intersect"},
        "alderlake": alder, "raptorlake": alder, "meteorlake": alder,
        "arrowlake": arrow, "lunarlake": arrow | {"avxvnniint16"},
        "sapphirerapids": sapphire, "emeraldrapids": sapphire, "graniterapids": sapphire,
        "sierraforest": arrow, "clearwaterforest": arrow | {"avxvnniint16"},
        "diamondrapids": sapphire | arrow | {"avxvnniint16"},
        "znver1": zen, "znver2": zen, "znver3": zen, "znver4": zen4,
        "znver5": zen4 | {"avxvnni", "avx512vp2intersect"},
    }  # fmt: skip


PROCESSORS: Final = _processors()

"""What code is compiled for: a GPU chip, a GPU product, or a CPU; and the compiler flags that each needs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, Literal, get_args

from fusilli_ground.spelling import did_you_mean
from graph_api.errors import NotSupportedError
from iree_bridge.targets import extensions
from iree_bridge.targets.cpu import host_arch, host_extensions
from iree_bridge.targets.extensions import PROCESSORS

__all__ = ["Target", "buffer_alignment", "known_targets"]

Backend = Literal["rocm", "llvm-cpu", "cuda"]

# The chips and products that the compiler of versions.SUPPORTED accepts for --iree-rocm-target; a test tries each.
# A product name selects tile sizes for its number of compute units; its chip decides which instructions exist.
_AMD_CHIPS: Final = (
    "gfx908", "gfx90a", "gfx942", "gfx950",
    "gfx1100", "gfx1101", "gfx1103", "gfx1150", "gfx1151",
    "gfx1200", "gfx1201", "gfx1250",
)  # fmt: skip
_AMD_PRODUCTS: Final[dict[str, str]] = {
    "mi100": "gfx908",
    "mi210": "gfx90a", "mi250": "gfx90a", "mi250x": "gfx90a",
    "mi300a": "gfx942", "mi300x": "gfx942", "mi308x": "gfx942", "mi325x": "gfx942",
    "mi350x": "gfx950", "mi355x": "gfx950",
    "v710": "gfx1101", "w7700": "gfx1101", "w7800": "gfx1100", "w7900": "gfx1100",
    "rx7700xt": "gfx1101", "rx7800xt": "gfx1101", "rx7900xt": "gfx1100", "rx7900xtx": "gfx1100",
    "strix-point": "gfx1150", "strix-halo": "gfx1151",
    "rx9060xt": "gfx1200", "rx9070": "gfx1201", "rx9070xt": "gfx1201", "r9700": "gfx1201",
    "mi455x": "gfx1250",
}  # fmt: skip
_AMD_FEATURES: Final = re.compile(r"(sramecc|xnack)[+-](:(sramecc|xnack)[+-])?")
_CUDA: Final = ("sm_80", "sm_86", "sm_89")
# The pass pipeline and the layout flags are more than tuning: with a part of them NHWC f16 convolutions whose permutes
# are not sunk through the padding were miscompiled (seen on a CUDA device, where it could be run).
_GPU_FLAGS: Final = (
    "--iree-opt-level=O3",
    "--iree-preprocessing-pass-pipeline=builtin.module(iree-preprocessing-backward-data-conv-pipeline)",
    "--iree-global-opt-propagate-transposes-through-conv",
    "--iree-global-opt-enable-sink-transpose-through-pad",
    "--iree-dispatch-creation-enable-aggressive-reshape-movement",
    "--iree-dispatch-creation-enable-split-reduction",
    "--iree-torch-externalize-transients",
    # By default the compiler quietly computes f64 in f32 while the buffers stay f64, which gives garbage.
    "--iree-input-demote-f64-to-f32=false",
)
# --iree-flow-enable-pad-handling is left out everywhere: it changed no AMD kernel seen and made more results wrong on
# CUDA. Padding as a part of the convolution's kernel is a matter of the graph: iree_bridge/targets/variants.py.
_BUFFER_ALIGNMENT: Final = "--iree-stream-resource-min-offset-alignment="
_UNSTATED_ALIGNMENT: Final = 64  # the compiler's own
# What numpy and hipDNN promise of an address. Code that expects more would have to copy large arrays first.
_ARRAYS_AS_THEY_LIE: Final = (f"{_BUFFER_ALIGNMENT}16",)
# What is left of a row behind the last whole vector: the compiler's own choice are masked stores, which AVX2 has, but
# which AMD's processors execute in 20 to 40 steps: pointwise graphs with rows of 49 took three to eight times as long.
_NO_MASKS: Final = ("--iree-llvmcpu-vector-pproc-strategy=peel",)
_NO_NEGATIVE_STARTS: Final = ("--disable-lsr",)
# LLVM makes packed instructions of scalars that it joins, and of some reads the upper half of a constant in the
# instruction, which is 0.
_NO_PAIRS: Final = ("--vectorize-slp=false",)
_PROCESSOR: Final = ("--iree-llvmcpu-target-cpu", "--iree-llvmcpu-target-cpu-features")
_CPU_FLAGS: Final = (
    "--iree-opt-level=O3",
    # The default of 32 KiB refuses an embedding followed by a layer norm.
    "--iree-llvmcpu-stack-allocation-limit=131072",
    "--iree-torch-externalize-transients",
    # By default the compiler quietly computes f64 in f32 while the buffers stay f64, which gives garbage.
    "--iree-input-demote-f64-to-f32=false",
)


@dataclass(frozen=True)
class Target:
    """One thing that code can be compiled for. Hashable; ``str(target)`` is the name that ``parse`` takes.

    Attributes:
        backend: the compiler backend.
        arch: chip (``gfx942``), product (``mi300x``), CUDA architecture (``sm_80``), or a processor: ``host`` or one of
            `iree_bridge.targets.extensions.PROCESSORS`.
        features: for ``host``, the instruction-set extensions that code may use, comma-separated: those that the
            machine reports, in LLVM's spelling. Empty otherwise.
    """

    backend: Backend
    arch: str
    features: str = ""

    @staticmethod
    def parse(name: str) -> Target:
        """The target called ``name``, e.g. ``gfx942``, ``mi300x``, ``cpu``, ``cpu:x86-64-v3``, ``sm_80``.

        A chip may have the features that ROCm appends to its name, ``gfx942:sramecc+:xnack-``: the code suits each.

        Raises:
            NotSupportedError: there is no such target; the message lists those there are.
        """
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users may pass anything
            raise NotSupportedError("", "target", f"a target is named by a string such as 'gfx942', got {name!r}")
        return _parse(name.strip().lower())

    @staticmethod
    def restored(fields: Mapping[str, Any]) -> Target:
        """The target whose fields a file holds.

        Earlier versions kept the processor's model and the kernel's names in ``features``.

        Raises:
            ValueError, TypeError: they are those of no target.
        """
        target = Target(**fields)
        arch = re.fullmatch(r"[a-z0-9][a-z0-9_.-]*", target.arch)
        if target.backend not in get_args(Backend) or arch is None or not isinstance(fields.get("features", ""), str):
            raise ValueError(f"{target!r} is no target")
        if target.backend == "llvm-cpu" and target.arch not in ("host", *PROCESSORS):
            raise ValueError(f"{target!r} is no processor")
        return replace(target, features=_modern(target.features))

    @property
    def chip(self) -> str:
        """The architecture that decides which instructions exist: ``gfx942`` for ``mi300x``; ``arch`` otherwise."""
        return _AMD_PRODUCTS.get(self.arch, self.arch) if self.backend == "rocm" else self.arch

    @property
    def is_gpu(self) -> bool:
        """True for the ROCm and CUDA targets."""
        return self.backend != "llvm-cpu"

    @property
    def device(self) -> str:
        """Name of a device that such code runs on: ``hip``, ``cuda`` or ``cpu``."""
        return {"rocm": "hip", "cuda": "cuda"}.get(self.backend, "cpu")

    @property
    def extensions(self) -> tuple[str, ...]:
        """Of a CPU target: the instruction-set extensions that its code may use, so what it needs; sorted."""
        if self.arch == "host":
            return tuple(filter(None, self.features.split(",")))
        return tuple(sorted(PROCESSORS.get(self.arch, ()))) if self.backend == "llvm-cpu" else ()

    def needs(self, flags: Sequence[str]) -> tuple[str, ...]:
        """The extensions that code for this target may use if it was compiled with ``flags``, which may name others."""
        if self.is_gpu or host_arch() not in extensions.ARCHITECTURES:
            return self.extensions
        processor, features = ([f.partition("=")[2] for f in flags if f.startswith(f"{name}=")] for name in _PROCESSOR)
        other = [name for name in processor if name != extensions.BASE]
        named = Target("llvm-cpu", other[-1], ",".join(host_extensions())).extensions if other else ()
        told = (name.strip() for name in features[-1].split(",")) if features else ()
        return tuple(sorted({*named, *(name.removeprefix("+") for name in told if name and name[0] != "-")}))

    @property
    def vector_bytes(self) -> int:
        """Of a CPU target: the size of its vector registers."""
        if "avx512f" in self.extensions:
            return 64
        return 32 if "avx" in self.extensions else 16

    @property
    def lacks_masks(self) -> bool:
        """Of a CPU target: whether a part of a vector is slow to load or store. x86 got masks with AVX-512."""
        return host_arch() == "x86_64" and "avx512f" not in self.extensions

    @property
    def fuses_products(self) -> bool:
        """Of a CPU target: whether an instruction multiplies and adds; where none does, a library's function would."""
        return host_arch() != "x86_64" or "fma" in self.extensions

    @property
    def rounds_to_half(self) -> bool:
        """Whether an instruction makes 16-bit floats; x86 processors before 2012 and some emulated ones lack it."""
        return self.is_gpu or host_arch() != "x86_64" or "f16c" in self.extensions

    def global_flags(self) -> tuple[str, ...]:
        """The flags of this target that the compiler keeps per process, in order. Code is right with these only.

        AMD: loops keep their counters: reduced in strength, they start at a negative offset, and the instruction adds
        what is missing. Scalars are not joined to pairs: of some the constant is read where it has none.
        """
        if self.is_gpu:
            return _NO_NEGATIVE_STARTS + _NO_PAIRS if self.backend == "rocm" else ()
        return (*_ARRAYS_AS_THEY_LIE, *(_NO_MASKS if self.lacks_masks else ()))

    def flags(self) -> tuple[str, ...]:
        """The flags of this target that a session of the compiler takes, in order."""
        if self.backend == "rocm":
            return ("--iree-hal-target-backends=rocm", f"--iree-rocm-target={self.arch}", *_GPU_FLAGS)
        if self.backend == "cuda":
            return ("--iree-hal-target-backends=cuda", f"--iree-cuda-target={self.arch}", *_GPU_FLAGS)
        return ("--iree-hal-target-backends=llvm-cpu", *self._processor_flags(), *_CPU_FLAGS)

    def _processor_flags(self) -> tuple[str, ...]:
        """A processor without anything of its own, and each extension by name: no model of LLVM's takes part."""
        processor, features = _PROCESSOR
        if host_arch() not in extensions.ARCHITECTURES:
            return (f"{processor}=host",)
        # Those that are not told are switched off, in case LLVM takes more to be included in one than we know of.
        absent = extensions.not_told(self.extensions, host_arch())
        told = ",".join((*(f"+{name}" for name in self.extensions), *(f"-{name}" for name in absent)))
        return (f"{processor}={extensions.BASE}", f"{features}={told}")

    def __str__(self) -> str:
        if self.backend != "llvm-cpu":
            return self.arch
        return "cpu" if self.arch == "host" else f"cpu:{self.arch}"


def buffer_alignment(flags: Sequence[str]) -> int:
    """Bytes of which addresses that code is given must be a multiple, if ``flags`` made it."""
    stated = [flag.removeprefix(_BUFFER_ALIGNMENT) for flag in flags if flag.startswith(_BUFFER_ALIGNMENT)]
    return int(stated[-1]) if stated and stated[-1].isdecimal() else _UNSTATED_ALIGNMENT


def known_targets() -> tuple[str, ...]:
    """Every name that ``Target.parse`` takes."""
    cpus = tuple(f"cpu:{cpu}" for cpu in PROCESSORS) if host_arch() == "x86_64" else ()
    return (*_AMD_CHIPS, *_AMD_PRODUCTS, "cpu", *cpus, *_CUDA)


def _modern(features: str) -> str:
    """Features as they are written now: earlier versions put the model in front and used the kernel's names."""
    first, *names = features.split(",")
    if not first.startswith(host_arch()):
        return features
    return ",".join(extensions.told(names, host_arch()) or names)


@cache
def _parse(name: str) -> Target:
    if name in _AMD_CHIPS or name in _AMD_PRODUCTS:
        return Target("rocm", name)
    chip, _, features = name.partition(":")
    if chip in _AMD_CHIPS and _AMD_FEATURES.fullmatch(features):
        return Target("rocm", chip)
    if name in _CUDA:
        return Target("cuda", name)
    if name == "cpu":
        return Target("llvm-cpu", "host", ",".join(host_extensions()))
    if name.startswith("cpu:") and name in known_targets():
        return Target("llvm-cpu", name.removeprefix("cpu:"))
    near = did_you_mean(name, known_targets(), 0.7)
    raise NotSupportedError("", "target", f"target '{name}' is unknown{near}; known are {', '.join(known_targets())}")

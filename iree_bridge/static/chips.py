"""AMD's chips in numbers. What is not publicly known, or not known here, is not in the table and nothing is said of it.

Sources: compute units and local memory: AMD's "AMD GPU specifications" (rocm.docs.amd.com, reference/gpu-specs); clock
and bandwidth: the data sheets of the Instinct products (amd.com); operations of a compute unit in a cycle: the white
papers on CDNA to CDNA 4. Those times units and clock give the peaks of the data sheets (MI300X, f16: 2048 x 304 x 2.1
GHz = 1307 TFLOP/s). Registers and waves of a SIMD: the instruction set guides, and LLVM's AMDGPU usage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from graph_api import DataType
from iree_bridge.targets.target import Target

__all__ = ["SIMDS", "Chip", "chip_of"]

SIMDS: Final = 4
"""Of a compute unit of CDNA."""


@dataclass(frozen=True)
class _Generation:
    """What the chips of a target have in common.

    Attributes:
        matrix: operations (two for each product and sum) of a compute unit in a cycle, by the type of the factors.
        vector: those of its vector units, in FLOAT.
        lds: bytes of local memory of a compute unit.
        registers: vector registers that the waves of a SIMD share.
        granule: in such steps a wave gets them.
        waves: of a SIMD at most.
        has_one_file: whether accumulation registers are a part of these.
    """

    matrix: Mapping[DataType, int]
    vector: int
    lds: int
    registers: int
    granule: int
    waves: int
    has_one_file: bool = True


@dataclass(frozen=True)
class Chip:
    """A chip; of products of two, each of which is a device, one of them.

    Attributes:
        name: of the product.
        units: compute units.
        clock: peak, in Hz.
        bandwidth: of its memory, in bytes a second.
        generation: what it has in common with others of its target.
    """

    name: str
    units: int
    clock: float
    bandwidth: float
    generation: _Generation

    def matrix_peak(self, dtype: DataType) -> float | None:
        """Operations a second of its matrix instructions; None: it has none for the type, or that is not known."""
        each = self.generation.matrix.get(dtype)
        return None if each is None else each * self.units * self.clock

    @property
    def vector_peak(self) -> float:
        """Operations a second of its vector units, in FLOAT."""
        return self.generation.vector * self.units * self.clock

    def waves(self, vgprs: int, agprs: int, lds: int, threads: int, wavefront: int) -> int:
        """Waves of a kernel that a SIMD holds at a time.

        Args:
            vgprs: of a work item; on chips with one file of registers the accumulation registers are among them.
            agprs: accumulation registers of a work item.
            lds: bytes of local memory of a workgroup.
            threads: work items of a workgroup.
            wavefront: of a wave.
        """
        g = self.generation
        used = vgprs if g.has_one_file else max(vgprs, agprs)
        by_registers = g.registers // max(-(-used // g.granule) * g.granule, g.granule)
        of_group = -(-threads // wavefront)
        by_lds = -(-(g.lds // lds * of_group) // SIMDS) if lds else g.waves
        return max(min(g.waves, by_registers, by_lds), 1)


def _types(f16: int, bf16: int, int8: int, f32: int) -> dict[DataType, int]:
    return {DataType.HALF: f16, DataType.BFLOAT16: bf16, DataType.INT8: int8, DataType.UINT8: int8, DataType.FLOAT: f32}


_KIB: Final = 1 << 10
_CDNA = _Generation(_types(1024, 512, 1024, 256), 128, 64 * _KIB, 256, 4, 10, has_one_file=False)
_CDNA2 = _Generation(_types(1024, 1024, 1024, 256), 128, 64 * _KIB, 512, 8, 8)
_CDNA3 = _Generation(_types(2048, 2048, 4096, 256), 256, 64 * _KIB, 512, 8, 8)
_CDNA4 = _Generation(_types(4096, 4096, 8192, 256), 256, 160 * _KIB, 512, 8, 8)
_CHIPS: Final = {
    "mi100": Chip("MI100", 120, 1.502e9, 1.2288e12, _CDNA),
    "mi210": Chip("MI210", 104, 1.7e9, 1.6384e12, _CDNA2),
    "mi250": Chip("MI250, a die", 104, 1.7e9, 1.6384e12, _CDNA2),
    "mi250x": Chip("MI250X, a die", 110, 1.7e9, 1.6384e12, _CDNA2),
    "mi300a": Chip("MI300A", 228, 2.1e9, 5.3e12, _CDNA3),
    "mi300x": Chip("MI300X", 304, 2.1e9, 5.3e12, _CDNA3),
    "mi325x": Chip("MI325X", 304, 2.1e9, 6.0e12, _CDNA3),
    "mi350x": Chip("MI350X", 256, 2.2e9, 8.0e12, _CDNA4),
    "mi355x": Chip("MI355X", 256, 2.4e9, 8.0e12, _CDNA4),
}
_USUAL: Final = {"gfx908": "mi100", "gfx90a": "mi210", "gfx942": "mi300x", "gfx950": "mi355x"}
"""Target → the product that is meant where none is named."""


def chip_of(target: Target) -> Chip | None:
    """The chip of a target, or the usual one of an architecture; None: nothing is known here."""
    return _CHIPS.get(_USUAL.get(target.arch, target.arch))

"""GPUs by name: memory, bandwidth and arithmetic, from their makers' data sheets.

Memory is what the driver reports as the total, which is what engines multiply by `--gpu-memory-utilization`. Arithmetic
is dense, without sparsity. A MIG slice has its data sheet's memory and the part of bandwidth and arithmetic of its
slices (memory slices of 8, compute slices of 7).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from forebay.sizing.errors import SizingError

__all__ = ["GPUS", "Gpu", "find_gpu"]

_MIB: Final = 1 << 20
_TB: Final = 1e12


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or one slice of it."""

    name: str
    memory_bytes: int
    bandwidth: float
    """Bytes per second."""
    bf16_flops: float
    fp8_flops: float
    """The same as bf16 where there is no fp8 arithmetic: the weights are still smaller to read."""
    mig: tuple[str, ...] = ()
    """Names of its MIG slices: compute slices, then memory."""


def _gpu(  # noqa: PLR0917 - a row of the table below
    name: str,
    memory_mib: int,
    tb_per_s: float,
    bf16_tflops: float,
    fp8_tflops: float,
    mig: tuple[str, ...] = (),
) -> Gpu:
    return Gpu(
        name, memory_mib * _MIB, tb_per_s * _TB, bf16_tflops * 1e12, (fp8_tflops or bf16_tflops) * 1e12, mig
    )


_MIG_40: Final = ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
_MIG_80: Final = ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
_MIG_141: Final = ("1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb")

GPUS: Final[dict[str, Gpu]] = {
    gpu.name: gpu
    for gpu in (
        _gpu("a10g", 23_028, 0.600, 70, 0),
        _gpu("l4", 23_034, 0.300, 121, 242),
        _gpu("l40s", 46_068, 0.864, 362, 733),
        _gpu("a100-40gb", 40_960, 1.555, 312, 0, _MIG_40),
        _gpu("a100", 81_920, 2.039, 312, 0, _MIG_80),
        _gpu("h100", 81_559, 3.35, 989, 1979, _MIG_80),
        _gpu("h200", 143_771, 4.8, 989, 1979, _MIG_141),
        _gpu("b200", 183_359, 8.0, 2250, 4500),
        _gpu("mi300x", 196_592, 5.3, 1307, 2614),
    )
}


def find_gpu(name: str, mig: str | None = None) -> Gpu:
    """The GPU of that name, or a MIG slice of it, as in `3g.40gb`. Raises `SizingError`, naming those there are."""
    gpu = GPUS.get(name.lower())
    if gpu is None:
        raise SizingError(f"there is no GPU {name!r}. Known: {', '.join(GPUS)}")
    if mig is None:
        return gpu
    if mig not in gpu.mig:
        known = f"it has {', '.join(gpu.mig)}" if gpu.mig else "it cannot be split into MIG slices"
        raise SizingError(f"{gpu.name} has no MIG slice {mig!r}: {known}")
    compute, _, memory = mig.partition("g.")
    size_bytes = int(memory.removesuffix("gb")) * 1_000_000_000
    whole_bytes = int(gpu.mig[-1].partition("g.")[2].removesuffix("gb")) * 1_000_000_000
    memory_part = _eighths(size_bytes / whole_bytes)
    compute_part = int(compute) / 7
    return replace(
        gpu,
        name=f"{gpu.name}-{mig}",
        memory_bytes=int(gpu.memory_bytes * memory_part),
        bandwidth=gpu.bandwidth * memory_part,
        bf16_flops=gpu.bf16_flops * compute_part,
        fp8_flops=gpu.fp8_flops * compute_part,
        mig=(),
    )


def _eighths(part: float) -> float:
    """A part of the memory in whole memory slices: names round it."""
    return max(1, round(part * 8)) / 8

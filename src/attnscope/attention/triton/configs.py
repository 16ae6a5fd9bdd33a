"""Tile sizes of the kernels for each architecture, head dim and dtype, chosen by the compile report.

`python -m benchmarks kernels` compiles every entry and reports registers, shared memory and spills. Nothing is tuned
at the first call, so a call takes the same kernel on every machine of an architecture.
"""

from __future__ import annotations

from typing import NamedTuple

from attnscope.errors import UnsupportedError


class Config(NamedTuple):
    """The tile of a program, and how the compiler schedules it."""

    block_rows: int
    block_keys: int
    num_warps: int
    num_stages: int


class Architecture(NamedTuple):
    """A GPU architecture as the compiler names it."""

    backend: str  #: "cuda" or "hip"
    name: int | str
    warp_size: int
    shared_bytes: int  #: shared memory that one program may use, the least of the devices that share the entry
    precision: str  #: how `tl.dot` multiplies fp32: tf32x3 splits each factor in three


ARCHITECTURES = {
    "sm_80": Architecture("cuda", 80, 32, 101_376, "tf32x3"),
    "sm_90": Architecture("cuda", 90, 32, 232_448, "tf32x3"),
    "sm_100": Architecture("cuda", 100, 32, 232_448, "tf32x3"),
    "sm_120": Architecture("cuda", 120, 32, 101_376, "tf32x3"),
    "gfx942": Architecture("hip", "gfx942", 64, 65_536, "ieee"),
    "gfx950": Architecture("hip", "gfx950", 64, 163_840, "ieee"),
}
"""The architectures that are compiled for. sm_80 stands for 8.x, sm_90 for 9.x, sm_100 for 10.x, sm_120 for 12.x."""

CONFIGS: dict[str, dict[str, dict[tuple[int, int], Config]]] = {
    "sm_80": {
        "rows": {
            (64, 2): Config(128, 32, 4, 2),
            (128, 2): Config(128, 32, 4, 2),
            (256, 2): Config(128, 32, 4, 2),
            (64, 4): Config(64, 32, 4, 2),
            (128, 4): Config(32, 16, 4, 2),
            (256, 4): Config(16, 32, 4, 2),
        },
        "columns": {
            (64, 2): Config(128, 64, 4, 2),
            (128, 2): Config(128, 64, 4, 2),
            (256, 2): Config(64, 128, 4, 2),
            (64, 4): Config(64, 32, 4, 2),
            (128, 4): Config(32, 64, 8, 2),
            (256, 4): Config(16, 32, 4, 2),
        },
        "bins": {
            (128, 2): Config(64, 128, 4, 2),
        },
        "products": {
            (128, 2): Config(64, 32, 4, 2),
            (256, 2): Config(64, 32, 8, 2),
            (128, 4): Config(16, 32, 4, 2),
            (256, 4): Config(16, 32, 4, 2),
        },
    },
    "sm_90": {
        "rows": {
            (64, 2): Config(64, 128, 4, 3),
            (128, 2): Config(128, 64, 4, 2),
            (256, 2): Config(64, 64, 4, 2),
            (128, 4): Config(32, 16, 4, 2),
            (256, 4): Config(16, 32, 4, 2),
        },
        "columns": {
            (64, 2): Config(64, 128, 4, 3),
            (128, 2): Config(64, 128, 4, 2),
            (256, 2): Config(64, 64, 4, 2),
            (128, 4): Config(32, 64, 8, 2),
            (256, 4): Config(16, 32, 4, 2),
        },
        "products": {
            (128, 2): Config(64, 32, 4, 2),
            (256, 2): Config(64, 32, 8, 2),
            (128, 4): Config(16, 32, 4, 2),
            (256, 4): Config(16, 32, 4, 2),
        },
    },
    "sm_100": {
        "rows": {
            (64, 2): Config(128, 64, 8, 2),
            (128, 2): Config(128, 64, 8, 2),
            (256, 2): Config(128, 32, 4, 2),
            (128, 4): Config(32, 16, 4, 2),
            (256, 4): Config(16, 32, 4, 2),
        },
        "columns": {
            (64, 2): Config(64, 128, 4, 2),
            (128, 2): Config(128, 128, 8, 2),
            (256, 2): Config(128, 64, 8, 2),
            (128, 4): Config(32, 64, 8, 2),
            (256, 4): Config(16, 32, 4, 2),
        },
        "bins": {
            (64, 2): Config(128, 64, 8, 2),
            (128, 2): Config(128, 64, 8, 2),
        },
        "products": {
            (128, 2): Config(64, 64, 4, 2),
            (256, 2): Config(64, 64, 8, 2),
            (128, 4): Config(16, 32, 4, 2),
            (256, 4): Config(16, 32, 4, 2),
        },
    },
    "sm_120": {
        "rows": {
            (64, 2): Config(128, 32, 4, 2),
            (128, 2): Config(64, 64, 4, 2),
            (256, 2): Config(64, 32, 4, 2),
            (64, 4): Config(64, 32, 4, 2),
            (128, 4): Config(32, 16, 4, 2),
            (256, 4): Config(16, 32, 4, 2),
        },
        "columns": {
            (64, 2): Config(128, 32, 4, 2),
            (128, 2): Config(128, 32, 4, 2),
            (256, 2): Config(64, 128, 4, 2),
            (64, 4): Config(64, 32, 4, 2),
            (128, 4): Config(32, 64, 8, 2),
            (256, 4): Config(16, 32, 4, 2),
        },
        "products": {
            (128, 2): Config(64, 32, 4, 2),
            (256, 2): Config(64, 32, 8, 2),
            (128, 4): Config(16, 32, 4, 2),
            (256, 4): Config(16, 32, 4, 2),
        },
    },
    "gfx942": {
        "rows": {
            (64, 2): Config(128, 64, 4, 2),
            (128, 2): Config(128, 64, 8, 2),
            (256, 2): Config(64, 32, 4, 2),
            (128, 4): Config(64, 32, 4, 2),
            (256, 4): Config(64, 32, 4, 2),
        },
        "columns": {
            (64, 2): Config(128, 64, 4, 2),
            (128, 2): Config(64, 64, 4, 2),
            (256, 2): Config(64, 64, 4, 2),
            (128, 4): Config(64, 32, 4, 2),
            (256, 4): Config(32, 32, 4, 2),
        },
        "products": {
            (128, 2): Config(64, 32, 4, 2),
            (256, 2): Config(64, 32, 4, 1),
            (128, 4): Config(64, 32, 4, 1),
            (256, 4): Config(32, 32, 4, 1),
        },
    },
    "gfx950": {
        "rows": {
            (128, 2): Config(128, 64, 8, 2),
            (256, 2): Config(64, 32, 4, 2),
            (128, 4): Config(64, 32, 4, 2),
            (256, 4): Config(64, 32, 4, 2),
        },
        "columns": {
            (128, 2): Config(64, 64, 4, 2),
            (256, 2): Config(64, 64, 4, 2),
            (128, 4): Config(64, 32, 4, 2),
            (256, 4): Config(32, 32, 4, 2),
        },
        "products": {
            (128, 2): Config(64, 32, 4, 2),
            (256, 2): Config(64, 32, 4, 2),
            (128, 4): Config(64, 32, 4, 2),
            (256, 4): Config(32, 32, 4, 2),
        },
    },
}
"""Configuration by architecture, kernel, and (head dim, bytes per element). Bins fall back to the entry of columns."""


def find_architecture(backend: str, name: int | str) -> str:
    """Return the entry of ARCHITECTURES for a device; raise UnsupportedError if there is none.

    >>> find_architecture("cuda", 89)
    'sm_80'
    """
    found = f"sm_{int(name) // 10 * 10}" if backend == "cuda" else str(name).partition(":")[0]
    if found not in ARCHITECTURES:
        raise UnsupportedError(
            f"the Triton kernels have no configuration for {backend} {name}, only for {', '.join(ARCHITECTURES)}; "
            "use backend='streaming'"
        )
    return found


def find_config(kernel: str, architecture: str, head_dim: int, itemsize: int) -> Config:
    """Return the configuration of a kernel; raise UnsupportedError if there is none.

    A head dim without an entry takes that of the next larger one, which has less room for tiles.
    """
    kernels = CONFIGS[architecture]
    known = kernels["columns"] | kernels.get("bins", {}) if kernel == "bins" else kernels.get(kernel, {})
    wider = [dim for dim, size in known if dim >= head_dim and size == itemsize]
    if not wider:
        raise UnsupportedError(
            f"the Triton kernel for {kernel} has no configuration for head dim {head_dim} in {8 * itemsize} bits on "
            f"{architecture}; use backend='streaming'"
        )
    return known[min(wider), itemsize]

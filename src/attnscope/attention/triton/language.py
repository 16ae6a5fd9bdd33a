"""The only import of triton. Kernels take `triton` and `tl` from here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.extras import import_extra

if TYPE_CHECKING:
    import triton
    import triton.language as tl
else:
    triton, tl = import_extra("triton"), import_extra("triton.language")

__all__ = ["tl", "triton"]

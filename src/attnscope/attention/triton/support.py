"""Whether the kernels compute the statistics of an attention, and with which tiles; if not, why.

In: an `AttentionSpec` and the regions of its mask. Does not import triton, and does not wait for a device.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple

import torch

from attnscope.attention.algebra import RegionMask
from attnscope.attention.intervals import Intervals, to_intervals
from attnscope.attention.spec import AttentionSpec
from attnscope.attention.triton.configs import ARCHITECTURES, Config, find_architecture, find_config
from attnscope.attention.triton.score_terms import ScoreTerms, to_score_terms
from attnscope.errors import UnsupportedError

KERNELS = ("rows", "columns", "bins")  # whose configurations statistics need
WITHOUT_DRIVER = "sm_90"
"""The architecture of tensors on "cuda" in a process without a GPU, which have no numbers."""


class KernelPlan(NamedTuple):
    """How the kernels compute the statistics of one attention."""

    intervals: Intervals  #: in main memory
    terms: ScoreTerms
    rows: Config  #: tiles of the row passes
    columns: Config  #: tiles of the column pass for each key
    bins: Config  #: tiles of the column pass for bins
    precision: str  #: how fp32 is multiplied


def plan_kernels(spec: AttentionSpec, region_mask: RegionMask | None) -> KernelPlan | str:
    """Return the plan, or one sentence that says why the kernels do not compute these statistics."""
    signature, device = spec.signature, spec.signature.device
    if device.type != "cuda":
        return f"Triton kernels run on CUDA and ROCm devices, these tensors are on {device}"
    if not has_triton():
        return 'the package triton is not installed (pip install "attnscope[triton]")'
    if 0 in spec.sizes:
        return "there is no attention weight"
    terms = to_score_terms(spec)
    if terms is None:
        return f"the Triton kernels do not support {' + '.join(map(repr, spec.steps))}"
    intervals = to_intervals(region_mask, spec.sizes, torch.device("cpu"))
    if intervals is None:
        return f"the mask {spec.mask} is not one interval of keys per query"
    head_dim, itemsize = signature.query[-1], signature.dtype.itemsize
    try:
        architecture = architecture_of(device)
        rows, columns, bins = (find_config(kernel, architecture, head_dim, itemsize) for kernel in KERNELS)
        return KernelPlan(intervals, terms, rows, columns, bins, ARCHITECTURES[architecture].precision)
    except UnsupportedError as error:
        return str(error).partition(";")[0]


def has_triton() -> bool:
    """Whether triton can be imported, without importing it."""
    return find_spec("triton") is not None


def architecture_of(device: torch.device) -> str:
    """Return the entry of ARCHITECTURES for a device; raise UnsupportedError if there is none."""
    if not torch.cuda.is_available():
        return WITHOUT_DRIVER
    if torch.version.hip is not None:
        return find_architecture("hip", torch.cuda.get_device_properties(device).gcnArchName)
    major, minor = torch.cuda.get_device_capability(device)
    return find_architecture("cuda", 10 * major + minor)

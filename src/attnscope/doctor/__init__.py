"""Reports the installation, its attention kernels and memory limits, and verifies `attend` on its devices."""

from attnscope.doctor.contracts import verify
from attnscope.doctor.report import collect, show

__all__ = ["collect", "show", "verify"]

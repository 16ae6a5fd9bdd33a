"""Reports the installation, its kernels and memory limits, and verifies the contracts of the library on its devices."""

from attnscope.doctor.report import collect, show
from attnscope.doctor.verification import verify

__all__ = ["collect", "show", "verify"]

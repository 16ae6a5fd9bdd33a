"""What this installation consists of, what carries out attention on it, how much fits, and whether contracts hold."""

from attnscope.doctor.contracts import verify
from attnscope.doctor.report import show

__all__ = ["show", "verify"]

"""What this installation consists of, what carries out attention on it, how much fits, and whether contracts hold."""

from attnscope.doctor.contracts import verify
from attnscope.doctor.report import collect, show

__all__ = ["collect", "show", "verify"]

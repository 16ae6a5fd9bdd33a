"""What this installation consists of, which engine serves which device, and whether the contracts hold on it."""

from sightline.doctor.contracts import verify
from sightline.doctor.installation import show

__all__ = ["show", "verify"]

"""A stand-in cluster in one process: a Kubernetes API with KubeVirt's behaviour, over HTTP on loopback.

For development, the demo and tests; it is no part of a production install.
"""

from .client import RemoteSandbox
from .cluster import Sandbox
from .faults import Fault
from .journal import Request

__all__ = ["Fault", "RemoteSandbox", "Request", "Sandbox"]

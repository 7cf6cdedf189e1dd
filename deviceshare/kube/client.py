"""What we use of the Kubernetes client: it reads kubeconfig files and refreshes tokens.

Its packages' `__init__` import whatever there is, the synchronous client and requests among it. That would cost each
agent on each node 12 MiB of its 80, and every command half a second. So they are entered without being run; they hold
nothing else.
"""

import sys
from importlib.util import find_spec, module_from_spec

for _name in ("kubernetes", "kubernetes.aio"):
    if _name not in sys.modules:
        _spec = find_spec(_name)
        assert _spec is not None
        sys.modules[_name] = module_from_spec(_spec)

from kubernetes.aio.client import Configuration  # noqa: E402
from kubernetes.aio.client.rest import RESTClientObject  # noqa: E402
from kubernetes.aio.config import (  # noqa: E402
    ConfigException,
    load_incluster_config,
    load_kube_config,
    refresh_token,
)

__all__ = [
    "ConfigException",
    "Configuration",
    "RESTClientObject",
    "load_incluster_config",
    "load_kube_config",
    "refresh_token",
]

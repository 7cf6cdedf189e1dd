"""A kubeconfig file, read by the Kubernetes client: how people's commands reach a cluster (decision 11).

https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/
"""

import asyncio
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import structlog
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import ConfigException, load_kube_config, refresh_token

from deviceshare.kube.connection import Access, NoCredentials, NotConfigured

log = structlog.get_logger(__name__)

RETRY_SECONDS: Final = 60.0
"""After a token could not be refreshed."""


async def read(files: str, context: str | None) -> Access:
    """What the context, or the current one, says in these files, which are separated as in KUBECONFIG.

    Tokens are refreshed: an exec plugin's, an OpenID Connect provider's and Google's by asking again.

    Raises:
        NotConfigured: they can't be read, or say something that can't be used.
    """
    configuration = Configuration(retries=False)
    try:
        loader = await load_kube_config(files, context, configuration)  # type: ignore[no-untyped-call]
        tls = RESTClientObject(configuration).ssl_context
    except Exception as error:  # the loader meets an odd file with whatever it stumbles over
        why = " ".join(str(error).split())
        raise NotConfigured(f"kubeconfig {files}: {why}; name a kubeconfig file with --kubeconfig") from error
    return Access(
        configuration.host,
        tls,
        partial(_authorization, configuration),
        configuration.proxy or _environment_proxy(configuration.host),
        configuration.tls_server_name or None,
        partial(_refresh, loader, configuration),
    )


async def _authorization(configuration: Configuration) -> str | None:
    try:
        return await configuration.get_api_key_with_prefix("BearerToken")
    except ConfigException as error:
        raise NoCredentials(str(error)) from error


def _environment_proxy(server: str) -> str | None:
    """The proxy by which HTTPS_PROXY, HTTP_PROXY and NO_PROXY have us reach the server, if any."""
    parts = urlsplit(server)
    return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)


async def _refresh(loader: Any, configuration: Configuration) -> None:
    while True:
        try:
            await refresh_token(loader, configuration)  # type: ignore[no-untyped-call]
            return  # nothing in this kubeconfig is ever refreshed
        except Exception:
            # Whatever a plugin does, the token we have may still be good, and the next try may work.
            log.exception("Connection failed to refresh its token")
            await asyncio.sleep(RETRY_SECONDS)

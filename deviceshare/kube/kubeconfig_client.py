"""A kubeconfig's user whose credentials have to be asked for, by the Kubernetes client (decision 11).

https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins
"""

import asyncio
from functools import partial
from typing import Any, Final

import structlog
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import ConfigException, load_kube_config, refresh_token

from deviceshare.kube.access import Access, NoCredentials, environment_proxy

log = structlog.get_logger(__name__)

RETRY_SECONDS: Final = 60.0
"""After a token could not be refreshed."""


async def read(files: str, context: str | None) -> Access:
    """What the context, or the current one, says in these files, which are separated as in KUBECONFIG.

    Tokens are refreshed: an exec plugin's, an OpenID Connect provider's and Google's by asking again. Raises whatever
    the client meets an odd file with.
    """
    configuration = Configuration(retries=False)
    loader = await load_kube_config(files, context, configuration)  # type: ignore[no-untyped-call]
    tls = RESTClientObject(configuration).ssl_context
    return Access(
        configuration.host,
        tls,
        partial(_authorization, configuration),
        configuration.proxy or environment_proxy(configuration.host),
        configuration.tls_server_name or None,
        partial(_refresh, loader, configuration),
    )


async def _authorization(configuration: Configuration) -> str | None:
    try:
        return await configuration.get_api_key_with_prefix("BearerToken")
    except ConfigException as error:
        raise NoCredentials(str(error)) from error


async def _refresh(loader: Any, configuration: Configuration) -> None:
    while True:
        try:
            await refresh_token(loader, configuration)  # type: ignore[no-untyped-call]
            return  # nothing in this kubeconfig is ever refreshed
        except Exception:
            # Whatever a plugin does, the token we have may still be good, and the next try may work.
            log.exception("Connection failed to refresh its token")
            await asyncio.sleep(RETRY_SECONDS)

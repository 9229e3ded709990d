"""How to reach the API server: a service account or a kubeconfig, credentials, a proxy."""

import os
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from kubernetes.aio import client as kube
from kubernetes.aio import config as kube_config

from grpo_operator.cluster import errors


@dataclass(frozen=True)
class Credentials:
    """How to reach the API server, for a second client such as the one that watches."""

    server: str
    ca_path: str | None
    ca_data: str | bytes | None
    is_insecure: bool
    certificate_path: str | None
    private_key_path: str | None
    proxy: str | None
    authorization: str | None = field(repr=False)
    """Value of the Authorization header, scheme included."""


async def load_configuration(*, kubeconfig: str | None, context: str | None) -> Any:
    """A configuration of the library, with credentials that are valid now. Raises KubernetesError naming what
    is missing."""
    configuration = kube.Configuration()
    try:
        if kubeconfig is None and context is None and is_in_cluster():
            kube_config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            await kube_config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=kubeconfig, context=context, client_configuration=configuration
            )
    except kube_config.ConfigException as error:
        raise errors.KubernetesError(
            f"no way to reach a cluster: {error}. Give --kubeconfig FILE, set KUBECONFIG, or run in a pod"
        ) from error
    # The library would look into the environment and ~/.netrc at every request, in a thread.
    configuration.proxy = configuration.proxy or _proxy_to(configuration.host)
    configuration.client_session_kwargs = {"trust_env": False}
    return configuration


def _proxy_to(server: str) -> str | None:
    """The proxy that HTTPS_PROXY, HTTP_PROXY and NO_PROXY name for a server."""
    address = urlsplit(server)
    if proxy_bypass(address.hostname or ""):
        return None
    return getproxies().get(address.scheme)


def is_in_cluster() -> bool:
    """Whether this process runs in a pod with a service account."""
    return bool(os.environ.get(kube_config.incluster_config.SERVICE_HOST_ENV_NAME))

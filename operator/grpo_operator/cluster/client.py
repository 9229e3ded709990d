"""Requests to the API server through the Kubernetes client library. Speaks plain dicts and our own errors."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Generic, Self, TypeVar
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import client as kube

from grpo_operator.cluster import errors
from grpo_operator.cluster.configuration import Credentials, load_configuration
from grpo_operator.cluster.kinds import Kind, KubeObject
from grpo_operator.cluster.server_clock import ServerClock

FIELD_MANAGER = "grpo-operator"
REQUEST_TIMEOUT_SECONDS = 30.0
_WATCH_SECONDS = 240
"""How long the API server keeps a watch of `follow` open."""
PAGE_SIZE = 50
"""Objects that the API server sends at once. Larger pages leave larger holes in the memory."""
Kept = TypeVar("Kept")


@dataclass(frozen=True)
class Listing(Generic[Kept]):
    """One list of a kind: what is kept of the objects, and the version of the cluster's state that it
    shows."""

    items: tuple[Kept, ...]
    resource_version: int


OnAnswer = Callable[[str, str, str], None]
"""Called after each request with its verb and its resource, as a Role names them, and with the HTTP status of
the answer: `error` where there was none, and `other` for a status that HTTP does not know: that of a proxied
answer is its pod's choice."""
_METHODS = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "patch": "PATCH",
    "delete": "DELETE",
}
"""HTTP methods by verb."""
_STATUSES = frozenset(HTTPStatus)

LoadConfiguration = Callable[[], Awaitable[Any]]
"""Makes a configuration of the library, with credentials that are valid now."""


class Client:
    """Requests to one API server. Raises only `grpo_operator.cluster.errors`."""

    def __init__(
        self,
        load: LoadConfiguration,
        configuration: Any,
        *,
        on_answer: OnAnswer = lambda verb, resource, code: None,
    ) -> None:
        self.clock = ServerClock()
        self._load = load
        self._on_answer = on_answer
        self._api = kube.ApiClient(configuration)
        self._renewing = asyncio.Lock()
        self._in_flight: Counter[kube.ApiClient] = Counter()

    @classmethod
    async def connect(
        cls,
        *,
        kubeconfig: str | None = None,
        context: str | None = None,
        on_answer: OnAnswer = lambda verb, resource, code: None,
    ) -> Self:
        """Use the service account inside a cluster, else a kubeconfig (`--kubeconfig`, $KUBECONFIG, ~/.kube).

        Raises KubernetesError naming what is missing.
        """

        async def load() -> Any:
            return await load_configuration(kubeconfig=kubeconfig, context=context)

        return cls(load, await load(), on_answer=on_answer)

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()  # type: ignore[no-untyped-call]

    async def credentials(self) -> Credentials:
        """Fresh credentials: a service account's token, or what a kubeconfig's plug-in gives now."""
        found = await self._load()
        settings = await found.auth_settings()
        bearer = settings.get("BearerToken")
        token = bearer["value"] if bearer else None
        if token and token.lower().startswith("bearer "):
            token = "Bearer " + token[len("bearer ") :].strip()
        return Credentials(
            server=found.host,
            ca_path=found.ssl_ca_cert,
            ca_data=None if found.ssl_ca_cert else found.ca_cert_data,
            is_insecure=not found.verify_ssl,
            certificate_path=found.cert_file,
            private_key_path=found.key_file,
            proxy=found.proxy,
            authorization=token,
        )

    async def list(
        self,
        kind: Kind,
        namespace: str | None,
        *,
        fields: str = "",
        keep: Callable[[KubeObject], Kept],
    ) -> Listing[Kept]:
        """All objects of a kind in a namespace, or everywhere; `fields` is a field selector.

        They come in pages, and only what `keep` returns of each stays in memory.
        """
        query = {"limit": str(PAGE_SIZE)}
        query |= {"labelSelector": kind.selector} if kind.selector else {}
        query |= {"fieldSelector": fields} if fields else {}
        items: list[Kept] = []
        while True:
            page = await self._request("list", kind.resource, kind.path(namespace), query=query)
            items += (
                keep({**item, "kind": kind.name, "apiVersion": kind.api_version})
                for item in page.get("items", ())
            )
            meta = page["metadata"]
            if not meta.get("continue"):
                # every page shows the state at the first one
                return Listing(items=tuple(items), resource_version=int(meta["resourceVersion"]))
            query["continue"] = meta["continue"]

    async def follow(
        self, kind: Kind, namespace: str | None, *, since: int
    ) -> AsyncIterator[tuple[str, KubeObject]]:
        """(event type, object) of what happens to a kind after the version `since`, until the API server ends
        the watch. Raises KubernetesError, also where it no longer knows what has happened since."""
        query = {"watch": "true", "resourceVersion": str(since), "timeoutSeconds": str(_WATCH_SECONDS)}
        query |= {"labelSelector": kind.selector} if kind.selector else {}
        address = f"{kind.path(namespace)}?{urlencode(query)}"
        timeout = _WATCH_SECONDS + REQUEST_TIMEOUT_SECONDS
        response = await self._send("watch", kind.resource, address, timeout_seconds=timeout)
        try:
            if response.status != HTTPStatus.OK:
                raise error_for(response.status, (await response.read()).decode(errors="replace"))
            async for line in _lines(response.response.content):
                event = json.loads(line)
                item = event["object"]
                if event["type"] == "ERROR":
                    raise error_for(int(item.get("code", HTTPStatus.GONE)), json.dumps(item))
                yield event["type"], {**item, "kind": kind.name, "apiVersion": kind.api_version}
        except (TimeoutError, aiohttp.ClientError, ValueError) as error:
            raise errors.Transient(f"watch of {kind.plural}: {error or 'timed out'}") from error
        finally:
            response.response.release()

    async def get(self, kind: Kind, namespace: str | None, name: str) -> KubeObject:
        """One object; NotFound when there is none."""
        return await self._request("get", kind.resource, kind.path(namespace, name))

    async def create(
        self, kind: Kind, namespace: str, body: KubeObject, *, is_dry_run: bool = False
    ) -> KubeObject:
        """Create and return what the server made of it; AlreadyExists when the name is taken.

        A dry run only says what would have happened.
        """
        query = {"fieldManager": FIELD_MANAGER} | ({"dryRun": "All"} if is_dry_run else {})
        return await self._request("create", kind.resource, kind.path(namespace), query=query, body=body)

    async def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        *,
        uid: str,
        resource_version: str = "",
        grace_seconds: int | None = None,
    ) -> KubeObject | None:
        """Delete exactly the object with this uid. It is no error when it is gone, or when another has its
        name. `grace_seconds` is how long a pod may take to end, if not what its spec says.

        Returns the object while it is being deleted; None when it is gone. With `resource_version`, Conflict
        when it has changed since, or when another has its name.
        """
        exactly = {"uid": uid} | ({"resourceVersion": resource_version} if resource_version else {})
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": exactly} | (
            {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        )
        try:
            left = await self._request("delete", kind.resource, kind.path(namespace, name), body=options)
        except errors.NotFound:
            return None
        except errors.Conflict:
            if resource_version:
                raise
            return None
        return left if _is_going(left.get("metadata", {})) else None

    async def apply(
        self,
        kind: Kind,
        namespace: str,
        body: KubeObject,
        *,
        subresource: str = "",
        manager: str = FIELD_MANAGER,
    ) -> KubeObject:
        """Server-side apply as the field manager `manager`. Fields it applied before and leaves out now are
        removed.

        With metadata.resourceVersion in `body`, Conflict when the object has changed since.
        """
        part = f"/{subresource}" if subresource else ""
        path = kind.path(namespace, body["metadata"]["name"]) + part
        query = {"fieldManager": manager, "force": "true"}
        return await self._request(
            "patch",
            kind.resource + part,
            path,
            query=query,
            body=body,
            content_type="application/apply-patch+yaml",
        )

    async def merge_status(self, kind: Kind, namespace: str, name: str, body: KubeObject) -> KubeObject:
        """Change the status by a merge patch: a list in `body` replaces the stored one as a whole.
        With metadata.resourceVersion in `body`, Conflict when the object has changed since.
        """
        return await self._request(
            "patch",
            f"{kind.resource}/status",
            f"{kind.path(namespace, name)}/status",
            query={"fieldManager": FIELD_MANAGER},
            body=body,
            content_type="application/merge-patch+json",
        )

    async def schema(self, kind: Kind) -> KubeObject | None:
        """The OpenAPI schema that the API server serves for a kind; None when it shows none. Every account
        may read it: this needs no right on CustomResourceDefinitions."""
        try:
            found = await self._request("get", "openapi", f"/openapi/v3/apis/{kind.api_version}")
        except (errors.Forbidden, errors.NotFound):
            return None
        for schema in found.get("components", {}).get("schemas", {}).values():
            kinds = schema.get("x-kubernetes-group-version-kind", ())
            if any((k.get("group"), k.get("kind")) == (kind.group, kind.name) for k in kinds):
                return dict(schema)
        return None

    async def proxy_get(
        self, namespace: str, pod: str, port: int, path: str, *, timeout_seconds: float, max_bytes: int
    ) -> bytes:
        """GET from a pod's port through the API server; needs the right to get pods/proxy."""
        address = f"/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy{path}"
        response = await self._send("get", "pods/proxy", address, timeout_seconds=timeout_seconds)
        try:
            body = await read_at_most(response.response.content, num_bytes=max_bytes + 1)
        except (TimeoutError, aiohttp.ClientError) as error:
            raise errors.Transient(f"GET {address}: {error or 'timed out'}") from error
        finally:
            response.response.release()
        if response.status != HTTPStatus.OK:
            raise error_for(response.status, body.decode(errors="replace"))
        return body

    async def _request(
        self,
        verb: str,
        resource: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: KubeObject | None = None,
        content_type: str = "application/json",
    ) -> KubeObject:
        address = path + (f"?{urlencode(query)}" if query else "")
        response = await self._send(verb, resource, address, body=body, content_type=content_type)
        try:
            text = await response.read()
        except (TimeoutError, aiohttp.ClientError) as error:
            raise errors.Transient(f"{_METHODS[verb]} {path}: {error or 'timed out'}") from error
        if not 200 <= response.status < 300:
            raise error_for(response.status, text.decode(errors="replace"))
        try:
            parsed: KubeObject = json.loads(text)
        except ValueError as error:  # UnicodeDecodeError is one too
            raise errors.Transient(f"{_METHODS[verb]} {path}: the answer is not JSON: {error}") from error
        return parsed

    async def _renew(self, expired: kube.ApiClient) -> None:
        """Load the credentials again. Tokens of kubeconfig plug-ins expire after minutes, and the library
        keeps the first one. Of many requests that are refused at once, the first renews the token for all.
        """
        async with self._renewing:
            if self._api is expired:
                self._api = kube.ApiClient(await self._load())
                await self._close_unused(expired)

    async def _close_unused(self, api: kube.ApiClient) -> None:
        """Close an expired client after its last request: closing would break those under way."""
        if api is not self._api and not self._in_flight[api]:
            del self._in_flight[api]
            await api.close()  # type: ignore[no-untyped-call]

    async def _send(self, verb: str, resource: str, address: str, **options: Any) -> Any:
        """The response. The request is sent again with fresh credentials when the ones we have are
        refused."""
        expired = self._api
        response = await self._send_once(verb, resource, address, **options)
        if response.status != HTTPStatus.UNAUTHORIZED:
            return response
        response.response.release()
        await self._renew(expired)
        return await self._send_once(verb, resource, address, **options)

    async def _send_once(
        self,
        verb: str,
        resource: str,
        address: str,
        *,
        body: KubeObject | None = None,
        content_type: str = "application/json",
        timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
    ) -> Any:
        method, code = _METHODS[verb], "error"
        api, asked_at = self._api, time.monotonic()
        self._in_flight[api] += 1
        try:
            # Without the body, which the library would copy value by value: ours is plain data already.
            _, url, headers, _, _ = await api.param_serialize(
                method,
                address,
                header_params={"Accept": "application/json", "Content-Type": content_type},
                auth_settings=["BearerToken"],
            )
            response = await api.call_api(
                method, url, headers, body, _request_timeout=aiohttp.ClientTimeout(total=timeout_seconds)
            )
            code = str(response.status) if response.status in _STATUSES else "other"
            self.clock.heard(response.response.headers.get("Date"), asked_at=asked_at)
            return response
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise errors.Transient(
                f"{method} {address}: {error or 'timed out'}: is the API server up?"
            ) from error
        finally:
            self._on_answer(verb, resource, code)
            self._in_flight[api] -= 1
            await self._close_unused(api)


async def read_at_most(stream: aiohttp.StreamReader, *, num_bytes: int) -> bytes:
    """The whole body, or its first `num_bytes`: the other side chooses how long it is. A single read would
    return only what has arrived by then."""
    body = bytearray()
    while len(body) < num_bytes:
        chunk = await stream.read(num_bytes - len(body))
        if not chunk:
            break
        body += chunk
    return bytes(body)


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """The lines of a body as they arrive, however long they are."""
    rest = b""
    async for chunk in stream.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line.strip():
                yield line


def _is_going(meta: KubeObject) -> bool:
    """Whether the answer to a deletion shows an object that something has to end first. The answer also shows
    the last state of one that is gone, such as a pod that never had a node; without a version when two delete
    at once."""
    waits = bool(meta.get("finalizers")) or meta.get("deletionGracePeriodSeconds", 0) > 0
    return waits and "deletionTimestamp" in meta and bool(meta.get("resourceVersion"))


def error_for(status: int, text: str) -> errors.KubernetesError:
    """Our error for an HTTP status, with the message of the API server's Status object."""
    reason, message = "", text.strip()[:2000]
    if text.startswith("{"):
        try:
            parsed = json.loads(text)
            reason, message = str(parsed.get("reason", "")), str(parsed.get("message", message))
        except json.JSONDecodeError:
            reason = ""  # a proxy's answer may only look like a Status: its text is then the message
    kinds: dict[int, type[errors.KubernetesError]] = {
        400: errors.Invalid,
        401: errors.Forbidden,
        403: errors.Forbidden,
        404: errors.NotFound,
        409: errors.AlreadyExists if reason == "AlreadyExists" else errors.Conflict,
        422: errors.Invalid,
        500: errors.ServerFailed,
        504: errors.ServerFailed,
    }
    return kinds.get(status, errors.Transient)(message or f"HTTP {status}")

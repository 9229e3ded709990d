"""The few calls of the Kubernetes API that building a cluster needs, with the standard library only."""

import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from typing import Any, Self

from grpo_cluster.certificates import ADMIN, KeyFolder
from grpo_cluster.settings import ClusterError, ClusterSettings

REQUEST_TIMEOUT_SECONDS = 10.0
Object = dict[str, Any]


class ApiUnreachable(ClusterError):
    """No answer from the API server."""


class Api:
    """Sends requests as the administrator, each over a connection of its own: there are only a few."""

    def __init__(self, settings: ClusterSettings) -> None:
        keys = KeyFolder(settings.keys)
        self._address = settings.api_address
        self._tls = ssl.create_default_context(cafile=str(keys.authority))
        self._tls.load_cert_chain(keys.certificate(ADMIN), keys.key(ADMIN))

    @classmethod
    def of(cls, settings: ClusterSettings) -> Self:
        """The API of a cluster whose keys exist; raises ClusterError before its first `up`."""
        if not KeyFolder(settings.keys).certificate(ADMIN).is_file():
            raise ClusterError(f"cluster {settings.name} was never up: run `python e2e/cluster/cli.py up`")
        return cls(settings)

    def get(self, path: str) -> Object | None:
        """An object or list; None when it does not exist."""
        status, body = self._request("GET", path)
        if status == http.HTTPStatus.NOT_FOUND:
            return None
        return self._object("GET", path, status, body)

    def items(self, path: str) -> list[Object]:
        """The members of a list."""
        return (self.get(path) or {}).get("items", [])

    def is_ok(self, path: str) -> bool:
        """Whether a health path answers 200."""
        try:
            return self._request("GET", path)[0] == http.HTTPStatus.OK
        except ApiUnreachable:
            return False

    def apply(self, path: str, body: Object) -> Object:
        """Server-side apply of a whole object."""
        target = f"{path}/{body['metadata']['name']}?fieldManager=grpo-cluster&force=true"
        status, answer = self._request("PATCH", target, body, content_type="application/apply-patch+yaml")
        return self._object("PATCH", target, status, answer)

    def patch_json(self, path: str, operations: list[Object]) -> bool:
        """JSON patch; False when a `test` operation no longer holds or the object is gone."""
        status, answer = self._request("PATCH", path, operations, content_type="application/json-patch+json")
        if status in (
            http.HTTPStatus.NOT_FOUND,
            http.HTTPStatus.CONFLICT,
            http.HTTPStatus.UNPROCESSABLE_ENTITY,
        ):
            return False
        self._object("PATCH", path, status, answer)
        return True

    def watch(self, path: str, *, timeout_seconds: int) -> Iterator[Object]:
        """The objects of a list as ADDED events, then its changes, until the server ends the stream."""
        connection = self._connect(timeout_seconds + REQUEST_TIMEOUT_SECONDS)
        try:
            connection.request("GET", f"{path}?watch=true&timeoutSeconds={timeout_seconds}")
            response = connection.getresponse()
            if response.status != http.HTTPStatus.OK:
                raise ApiUnreachable(f"watching {path}: {response.status} {response.reason}")
            for line in response:
                yield json.loads(line)
        except (OSError, http.client.HTTPException) as error:
            raise ApiUnreachable(f"watching {path}: {error}") from error
        finally:
            connection.close()

    def _request(
        self, method: str, path: str, body: object = None, *, content_type: str = "application/json"
    ) -> tuple[int, bytes]:
        connection = self._connect(REQUEST_TIMEOUT_SECONDS)
        try:
            connection.request(
                method, path, json.dumps(body) if body is not None else None, {"Content-Type": content_type}
            )
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise ApiUnreachable(f"{method} {path}: no answer from the API server: {error}") from error
        finally:
            connection.close()

    def _connect(self, timeout_seconds: float) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(self._address, 6443, timeout=timeout_seconds, context=self._tls)

    @staticmethod
    def _object(method: str, path: str, status: int, body: bytes) -> Object:
        if status >= http.HTTPStatus.BAD_REQUEST:
            raise ClusterError(f"{method} {path}: {status}: {body.decode(errors='replace')[:500]}")
        return json.loads(body)


def resolve(name: str, *, server: str, timeout_seconds: float = 1.0) -> str | None:
    """Ask one DNS server for the IPv4 address of a full name.

    None when the name does not exist or has several addresses, and when the server does not answer.
    """
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.rstrip(".").split(".")) + b"\0"
    query = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" + labels + b"\x00\x01\x00\x01"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.settimeout(timeout_seconds)
        try:
            udp.sendto(query, (server, 53))
            answer = udp.recv(512)
        except OSError:
            return None
    no_error, counts = answer[3] & 0x0F == 0, answer[6:12]
    # With one answer and nothing after it, the packet ends with the address.
    return socket.inet_ntoa(answer[-4:]) if no_error and counts == b"\x00\x01\x00\x00\x00\x00" else None

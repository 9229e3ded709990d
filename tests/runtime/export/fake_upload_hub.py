"""A stand-in for the Hugging Face Hub that takes uploads: repositories, large files by LFS, and commits."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from fake_hub import COMMIT

TOKEN = "hf_a_token_of_the_tests"
LARGE_BYTES = 1024
"""From here on a file is sent by LFS."""


@dataclass
class FakeUploadHub:
    """`repositories` are files by repository, `objects` the large contents by their SHA-256. `asked` are
    method and path of all requests. The next `num_failures` requests are answered with 500."""

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    private: dict[str, bool | None] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    commits: list[list[str]] = field(default_factory=list)
    """The paths of each commit."""
    may_write: bool = True
    num_failures: int = 0
    address: str = ""

    def answer(self, method: str, path: str, *, token: str, body: bytes) -> tuple[int, Any]:
        """Status and JSON."""
        self.asked.append(f"{method} {path}")
        return self._refusal(path, token=token) or self._done(path, body)

    def _refusal(self, path: str, *, token: str) -> tuple[int, Any] | None:
        if self.num_failures:
            self.num_failures -= 1
            return 500, {"error": "the Hub fails"}
        # the address of a large file is a capability
        if not path.startswith("/lfs/") and token != f"Bearer {TOKEN}":
            return 401, {"error": "Invalid username or password."}
        act = "/".join(path.split("/")[5:])
        is_read = act in ("", "revision/main", "paths-info/main", "auth-check")
        if self.may_write or (is_read and _name(path) in self.repositories):
            return None
        return 403, {"error": "You have read access only."}

    def _done(self, path: str, body: bytes) -> tuple[int, Any]:
        if path.startswith("/lfs/"):
            digest = hashlib.sha256(body).hexdigest()
            self.objects[digest] = body
            return (200, {}) if path == f"/lfs/{digest}" else (400, {"error": "another content"})
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path.endswith(".git/info/lfs/objects/batch"):
            return 200, {"objects": [self._lfs(wanted) for wanted in json.loads(body)["objects"]]}
        name, act = _name(path), "/".join(path.split("/")[5:6])
        acts = {"preupload": self._preupload, "paths-info": self._paths_info, "commit": self._commit}
        if act in acts:
            return 200, acts[act](name, body)
        assert act in ("", "revision", "auth-check"), f"not faked: {path}"
        return 200, {"id": name, "sha": COMMIT, "siblings": []}

    def _preupload(self, name: str, body: bytes) -> Any:
        return {"files": [self._mode(name, file) for file in json.loads(body)["files"]]}

    def _paths_info(self, name: str, body: bytes) -> Any:
        files = self.repositories[name]
        return [_info(path, files[path]) for path in parse_qs(body.decode())["paths"] if path in files]

    def _create(self, wanted: dict[str, Any]) -> tuple[int, Any]:
        name = "/".join(filter(None, (wanted.get("organization"), wanted["name"])))
        if name in self.repositories:
            return 409, {"error": "You already created this model repo", "url": f"{self.address}/{name}"}
        self.repositories[name] = {}
        self.private[name] = wanted.get("private", wanted.get("visibility"))
        return 200, {"url": f"{self.address}/{name}", "name": name, "id": name}

    def _lfs(self, wanted: dict[str, Any]) -> dict[str, Any]:
        if wanted["oid"] in self.objects:
            return dict(wanted)
        return {**wanted, "actions": {"upload": {"href": f"{self.address}/lfs/{wanted['oid']}"}}}

    def _mode(self, name: str, file: dict[str, Any]) -> dict[str, Any]:
        there = self.repositories[name].get(file["path"])
        mode = "lfs" if file["size"] >= LARGE_BYTES else "regular"
        oid = None if there is None else _digest(there)
        return {"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid}

    def _commit(self, name: str, body: bytes) -> Any:
        operations = [json.loads(line) for line in body.splitlines()]
        files = {o["value"]["path"]: o["value"] for o in operations if o["key"] in ("file", "lfsFile")}
        for path, value in files.items():
            large = "oid" in value
            self.repositories[name][path] = (
                self.objects[value["oid"]] if large else base64.b64decode(value["content"])
            )
        self.commits.append(sorted(files))
        return {"commitUrl": f"{self.address}/{name}/commit/{COMMIT}", "commitOid": COMMIT}


def _name(path: str) -> str:
    """The repository that a path below /api/models names."""
    return "/".join(path.split("/")[3:5])


def _digest(content: bytes) -> str:
    if len(content) >= LARGE_BYTES:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _info(path: str, content: bytes) -> dict[str, Any]:
    info: dict[str, Any] = {"type": "file", "path": path, "size": len(content), "oid": "of-the-pointer"}
    if len(content) < LARGE_BYTES:
        return info | {"oid": _digest(content)}
    return info | {"lfs": {"oid": _digest(content), "size": len(content), "pointerSize": 100}}


@contextmanager
def serving_uploads(hub: FakeUploadHub) -> Iterator[str]:
    """The address of a server that answers for `hub`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            token = self.headers.get("Authorization", "")
            path = self.path.partition("?")[0]
            status, answer = hub.answer(self.command, path, token=token, body=body)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = _handle

        def log_message(self, *_: object) -> None:
            """Tests look at `asked` instead."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hub.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub.address
    finally:
        server.shutdown()
        server.server_close()

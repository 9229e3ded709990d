"""A Hugging Face Hub of this machine: a cache in the library's own layout, and a server that speaks as it."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def use_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make `cache` the Hub's: what HF_HOME does when it is set before the library is imported."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    return cache


def use_hub(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the server at `endpoint` the Hub: what HF_ENDPOINT does."""
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


def fill_cache(
    cache: Path, kind: str, name: str, files: Mapping[str, bytes], *, commit: str = COMMIT, ref: str = "main"
) -> Path:
    """Put a repository into the cache as it is kept there: refs, blobs, and snapshots of links to blobs."""
    repository = cache / f"{kind}s--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "blobs").mkdir(exist_ok=True)
    (repository / "refs" / ref).write_text(commit)
    snapshot = repository / "snapshots" / commit
    for path, content in files.items():
        blob = repository / "blobs" / sha1(content).hexdigest()  # noqa: S324 - names, as git's
        blob.write_bytes(content)
        (snapshot / path).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / path).symlink_to(blob)
    return snapshot


@dataclass
class FakeHub:
    """Repositories by kind and name; `asked` are the paths of all requests so far."""

    repositories: dict[tuple[str, str], Mapping[str, bytes]]
    gated: frozenset[str] = frozenset()
    broken: frozenset[str] = frozenset()
    broken_status: int = 500
    asked: list[str] = field(default_factory=list)


@contextmanager
def serving(hub: FakeHub) -> Iterator[str]:
    """The address of a server that answers for `hub`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            hub.asked.append(self.path)
            kind, name, rest = _asked_for(self.path.partition("?")[0].strip("/").split("/"))
            files = hub.repositories.get((kind, name))
            if name in hub.broken:
                self._answer(hub.broken_status)
            elif name in hub.gated:
                self._answer(403, {"X-Error-Code": "GatedRepo"})
            elif files is None:
                self._answer(404, {"X-Error-Code": "RepoNotFound"})
            elif rest[1] not in ("main", COMMIT):
                self._answer(404, {"X-Error-Code": "RevisionNotFound"})
            elif rest[0] == "revision":
                self._answer(200, body=json.dumps({"id": name, "sha": COMMIT, "siblings": []}).encode())
            elif rest[0] == "tree":
                self._answer(200, body=json.dumps(_tree(files)).encode())
            elif (path := "/".join(rest[2:])) in files:
                headers = {"ETag": f'"{_etag(files[path])}"', "X-Repo-Commit": COMMIT}
                self._answer(200, headers, body=files[path])
            else:
                self._answer(404, {"X-Error-Code": "EntryNotFound"})

        def _answer(self, code: int, headers: Mapping[str, str] | None = None, body: bytes = b"") -> None:
            self.send_response(code)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Tests look at `asked` instead."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def _asked_for(parts: list[str]) -> tuple[str, str, list[str]]:
    """Kind and name of the repository, and what of it is wanted."""
    if parts[0] == "api":
        return parts[1].removesuffix("s"), "/".join(parts[2:4]), parts[4:]
    if parts[0] == "datasets":
        return "dataset", "/".join(parts[1:3]), parts[3:]
    return "model", "/".join(parts[:2]), parts[2:]


def _tree(files: Mapping[str, bytes]) -> list[dict[str, object]]:
    return [
        {"type": "file", "path": path, "size": len(content), "oid": _etag(content)}
        for path, content in files.items()
    ]


def _etag(content: bytes) -> str:
    return sha1(content).hexdigest()  # noqa: S324 - names, as git's

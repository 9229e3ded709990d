"""The client against a server of our own: what it sends, and what becomes of bad answers."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from kubernetes.aio import client as kube

from grpo_operator.cluster import errors
from grpo_operator.cluster.client import Client, read_at_most
from grpo_operator.cluster.configuration import Credentials
from grpo_operator.cluster.kinds import EVENTS, JOBS, PODS, WORKLOADS, pending_workloads


@dataclass
class FakeApiServer:
    """Answers every request with `status` and `body` if it carries `token`; remembers what it was asked."""

    status: int = 200
    body: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    token: str = "first"
    pages: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of the first answers, before `body`."""
    is_stuck: bool = False
    date: str = ""
    """Of its answers, where it is not the machine's."""
    seen: list[tuple[str, str, dict[str, Any] | None]] = field(default_factory=list)
    address: str = ""

    async def answer(self, request: web.Request) -> web.Response:
        sent = await request.json() if request.can_read_body else None
        self.seen.append((request.method, request.path_qs, sent))
        if self.is_stuck:
            await asyncio.Event().wait()
        if request.headers.get("Authorization", "").lower() != f"bearer {self.token}":
            return web.json_response({"reason": "Unauthorized", "message": "who are you"}, status=401)
        if self.text:
            return web.Response(text=self.text, status=self.status)
        headers = {"Date": self.date} if self.date else {}
        answer = self.pages.pop(0) if self.pages else self.body
        return web.json_response(answer, status=self.status, headers=headers)


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    fake = FakeApiServer()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", fake.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield fake
    await runner.cleanup()


def write_kubeconfig(path: Path, *, server: str, token: str, proxy: str | None = None) -> None:
    cluster = {"server": server} | ({"proxy-url": proxy} if proxy else {})
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
                "clusters": [{"name": "k", "cluster": cluster}],
                "users": [{"name": "u", "user": {"token": token}}],
            }
        )
    )


@pytest.fixture
async def client(server: FakeApiServer, tmp_path: Path) -> AsyncIterator[Client]:
    write_kubeconfig(tmp_path / "config", server=server.address, token="first")
    made = await Client.connect(kubeconfig=str(tmp_path / "config"))
    yield made
    await made.close()


async def test_every_request_is_told_by_verb_resource_and_code_and_never_by_a_name(
    server: FakeApiServer, tmp_path: Path
):
    write_kubeconfig(tmp_path / "config", server=server.address, token="first")
    told: list[tuple[str, str, str]] = []
    client = await Client.connect(
        kubeconfig=str(tmp_path / "config"), on_answer=lambda *answer: told.append(answer)
    )
    body = {"metadata": {"name": "own", "resourceVersion": "7"}}
    server.body = body
    await client.get(PODS, "team", "own")
    await client.get(pending_workloads("own"), "team", "")
    await client.list(JOBS, "team", keep=dict)
    await client.create(PODS, "team", body)
    await client.apply(JOBS, "team", body, subresource="status")
    await client.merge_status(WORKLOADS, "team", "own", body)
    await client.delete(PODS, "team", "own", uid="u1")
    await client.schema(JOBS)
    server.status = 404
    with pytest.raises(errors.NotFound):
        await client.get(JOBS, "team", "own")
    server.status = 799  # a proxied answer is the choice of the user's code in the pod
    with pytest.raises(errors.KubernetesError):
        await client.proxy_get("team", "own", 8780, "/progress", timeout_seconds=60, max_bytes=10)
    server.is_stuck = True
    with pytest.raises(errors.Transient):
        await client.proxy_get("team", "own", 8780, "/progress", timeout_seconds=0.1, max_bytes=10)
    server.is_stuck, server.status, server.token = False, 200, "second"
    write_kubeconfig(tmp_path / "config", server=server.address, token="second")
    assert [event async for event in client.follow(WORKLOADS, "team", since=1)] == []
    await client.close()
    assert told == [
        ("get", "pods", "200"),
        ("get", "localqueues/pendingworkloads", "200"),
        ("list", "grpojobs", "200"),
        ("create", "pods", "200"),
        ("patch", "grpojobs/status", "200"),
        ("patch", "workloads/status", "200"),
        ("delete", "pods", "200"),
        ("get", "openapi", "200"),
        ("get", "grpojobs", "404"),
        ("get", "pods/proxy", "other"),
        ("get", "pods/proxy", "error"),
        ("watch", "workloads", "401"),
        ("watch", "workloads", "200"),
    ]


async def test_the_clock_is_that_of_the_answers(client: Client, server: FakeApiServer):
    server.date = "Thu, 26 Nov 2037 12:00:00 GMT"
    await client.get(PODS, "default", "p")
    assert client.clock().year == 2037


async def test_an_expired_token_is_renewed_and_the_request_repeated(
    client: Client, server: FakeApiServer, tmp_path: Path
):
    server.token, server.body = "second", {"metadata": {"name": "p"}}
    write_kubeconfig(tmp_path / "config", server=server.address, token="second")
    assert await client.get(PODS, "default", "p") == server.body
    assert (await client.credentials()).authorization == "Bearer second"


async def test_requests_that_find_their_token_expired_together_renew_it_once(server: FakeApiServer):
    num_loads = 0

    async def load() -> Any:
        nonlocal num_loads
        num_loads += 1
        token = "first" if num_loads == 1 else "second"
        return kube.Configuration(host=server.address, api_key={"BearerToken": f"Bearer {token}"})

    client = Client(load, await load())
    server.token, server.body = "second", {"metadata": {"name": "p"}}
    found = await asyncio.gather(*(client.get(PODS, "default", "p") for _ in range(5)))
    assert found == [server.body] * 5
    assert num_loads == 2
    await client.close()


async def test_an_expired_token_is_renewed_for_a_proxied_answer_too(
    client: Client, server: FakeApiServer, tmp_path: Path
):
    server.token, server.text = "second", "hello"
    write_kubeconfig(tmp_path / "config", server=server.address, token="second")
    read = client.proxy_get("default", "p", 8780, "/progress", timeout_seconds=60, max_bytes=10)
    assert await read == b"hello"


async def test_a_success_that_is_not_json_is_transient(client: Client, server: FakeApiServer):
    server.text = "<html>a proxy is starting</html>"
    with pytest.raises(errors.Transient, match="not JSON"):
        await client.list(PODS, "default", keep=dict)


async def test_a_token_that_stays_wrong_is_forbidden(client: Client, server: FakeApiServer):
    server.token = "another"
    with pytest.raises(errors.Forbidden, match="who are you"):
        await client.get(PODS, "default", "p")
    assert len(server.seen) == 2


async def test_a_list_asks_for_our_own_children_only(client: Client, server: FakeApiServer):
    server.body = {"metadata": {"resourceVersion": "12"}, "items": [{"metadata": {"name": "p"}}]}
    listing = await client.list(PODS, "default", keep=dict)
    assert listing.resource_version == 12
    assert listing.items[0]["kind"] == "Pod"
    assert "labelSelector=app.kubernetes.io/managed-by%3Dgrpo-operator" in server.seen[0][1]


@pytest.mark.parametrize(
    ("status", "reason", "message"),
    [(404, "NotFound", "gone"), (409, "Conflict", "the UID in the precondition is not that of the object")],
)
async def test_a_deletion_carries_the_uid_and_an_object_that_is_gone_or_another_one_is_fine(
    client: Client, server: FakeApiServer, status: int, reason: str, message: str
):
    server.status, server.body = status, {"reason": reason, "message": message}
    assert await client.delete(PODS, "default", "p", uid="u1") is None
    sent = server.seen[0][2]
    assert sent is not None and sent["preconditions"] == {"uid": "u1"}


async def test_a_deletion_of_one_state_meets_a_conflict_where_there_is_another(
    client: Client, server: FakeApiServer
):
    server.status, server.body = 409, {"reason": "Conflict", "message": "the ResourceVersion differs"}
    with pytest.raises(errors.Conflict, match="ResourceVersion"):
        await client.delete(JOBS, "default", "copy", uid="u1", resource_version="7")
    sent = server.seen[0][2]
    assert sent is not None and sent["preconditions"] == {"uid": "u1", "resourceVersion": "7"}


async def test_a_status_is_applied_as_our_field_manager(client: Client, server: FakeApiServer):
    await client.apply(JOBS, "default", {"metadata": {"name": "copy"}}, subresource="status")
    method, path, _ = server.seen[0]
    assert method == "PATCH"
    assert path.startswith("/apis/grpo.dev/v1alpha1/namespaces/default/grpojobs/copy/status?")
    # another manager of a field gives way, or one kubectl edit would hold up the operator for good
    assert {"fieldManager=grpo-operator", "force=true"} <= set(path.partition("?")[2].split("&"))


async def test_a_watch_passes_on_what_happens_however_long_an_object_is(
    client: Client, server: FakeApiServer
):
    events = [
        {"type": kind, "object": {"metadata": {"name": name, "annotations": {"long": "x" * 300_000}}}}
        for kind, name in (("ADDED", "a"), ("DELETED", "b"))
    ]
    server.text = "\n".join(map(json.dumps, events)) + "\n"
    found = [
        (event, item["metadata"]["name"], item["kind"])
        async for event, item in client.follow(WORKLOADS, "team", since=7)
    ]
    assert found == [("ADDED", "a", "Workload"), ("DELETED", "b", "Workload")]
    _, path, _ = server.seen[-1]
    assert path.startswith("/apis/kueue.x-k8s.io/v1beta2/namespaces/team/workloads?watch=true")
    assert "resourceVersion=7" in path
    assert "labelSelector=app.kubernetes.io" in path


async def test_a_watch_of_what_the_server_has_forgotten_ends_with_an_error(
    client: Client, server: FakeApiServer
):
    server.text = json.dumps({"type": "ERROR", "object": {"code": 410, "message": "too old"}}) + "\n"
    with pytest.raises(errors.Transient, match="too old"):
        _ = [event async for event in client.follow(WORKLOADS, None, since=1)]
    server.text, server.status = '{"reason": "Forbidden", "message": "no right"}', 403
    with pytest.raises(errors.Forbidden, match="no right"):
        _ = [event async for event in client.follow(WORKLOADS, None, since=1)]


async def test_a_status_is_merged_as_our_field_manager(client: Client, server: FakeApiServer):
    await client.merge_status(WORKLOADS, "team", "w", {"status": {"admission": None}})
    path = "/apis/kueue.x-k8s.io/v1beta2/namespaces/team/workloads/w/status?fieldManager=grpo-operator"
    assert server.seen[-1] == ("PATCH", path, {"status": {"admission": None}})


async def test_a_dry_run_asks_for_nothing_to_be_stored_and_a_creation_for_all(
    client: Client, server: FakeApiServer
):
    for is_dry_run in (True, False):
        await client.create(PODS, "default", {"metadata": {"name": "p"}}, is_dry_run=is_dry_run)
    assert ["dryRun=All" in path for _, path, _ in server.seen] == [True, False]


async def test_a_list_asks_for_the_objects_with_certain_fields_only(client: Client, server: FakeApiServer):
    server.body = {"metadata": {"resourceVersion": "12"}, "items": []}
    await client.list(EVENTS, "default", fields="involvedObject.uid=u1", keep=dict)
    assert "fieldSelector=involvedObject.uid%3Du1" in server.seen[0][1]


async def test_a_server_that_is_away_is_transient(server: FakeApiServer, tmp_path: Path):
    write_kubeconfig(tmp_path / "config", server="http://127.0.0.1:1", token="first")
    client = await Client.connect(kubeconfig=str(tmp_path / "config"))
    with pytest.raises(errors.Transient, match="is the API server up"):
        await client.get(PODS, "default", "p")
    await client.close()


async def test_a_proxied_answer_has_a_deadline(client: Client, server: FakeApiServer):
    server.is_stuck = True
    with pytest.raises(errors.Transient):
        await client.proxy_get("default", "p", 8780, "/progress", timeout_seconds=0.1, max_bytes=10)


async def test_of_a_proxied_answer_no_more_than_its_limit_is_read(client: Client, server: FakeApiServer):
    server.body = {"text": "x" * 1000}
    body = await client.proxy_get("default", "p", 8780, "/progress", timeout_seconds=60, max_bytes=10)
    assert len(body) == 11
    assert server.seen[0][1] == "/api/v1/namespaces/default/pods/p:8780/proxy/progress"


def test_credentials_do_not_show_their_token():
    shown = repr(Credentials("s", None, None, False, None, None, None, "Bearer secret"))
    assert "secret" not in shown


GOING = {"uid": "u1", "resourceVersion": "7", "deletionTimestamp": "2026-11-21T12:00:00Z"}


@pytest.mark.parametrize(
    "meta",
    [GOING | {"deletionGracePeriodSeconds": 60}, GOING | {"finalizers": ["example.org/keep"]}],
    ids=["its kubelet ends it", "a finalizer keeps it"],
)
async def test_what_is_being_deleted_is_returned(client: Client, server: FakeApiServer, meta: dict[str, Any]):
    server.body = {"metadata": meta}
    assert await client.delete(PODS, "default", "p", uid="u1") == server.body


@pytest.mark.parametrize(
    "meta",
    [
        {},
        GOING | {"resourceVersion": "", "deletionGracePeriodSeconds": 60},
        GOING | {"deletionGracePeriodSeconds": 0},
    ],
    ids=["no object", "another deleted it first", "a pod without a node"],
)
async def test_what_a_deletion_has_removed_is_not_returned(
    client: Client, server: FakeApiServer, meta: dict[str, Any]
):
    server.body = {"metadata": meta}
    assert await client.delete(PODS, "default", "p", uid="u1") is None


async def test_the_schema_of_a_kind_is_read_from_what_every_account_may_read(
    client: Client, server: FakeApiServer
):
    kind = {"group": "grpo.dev", "kind": "GRPOJob", "version": "v1alpha1"}
    served = {"type": "object", "x-kubernetes-group-version-kind": [kind]}
    server.body = {"components": {"schemas": {"other": {}, "job": served}}}
    assert await client.schema(JOBS) == served
    assert server.seen[0][1] == "/openapi/v3/apis/grpo.dev/v1alpha1"
    server.body = {"components": {"schemas": {"other": {}}}}
    assert await client.schema(JOBS) is None


@pytest.mark.parametrize("status", [403, 404])
async def test_a_cluster_that_shows_no_schema_has_none(client: Client, server: FakeApiServer, status: int):
    server.status, server.body = status, {"kind": "Status", "message": "no"}
    assert await client.schema(JOBS) is None


async def test_a_long_list_comes_in_pages_of_which_only_what_is_wanted_is_kept(
    client: Client, server: FakeApiServer
):
    server.pages = [
        {"metadata": {"resourceVersion": "12", "continue": "more"}, "items": [{"metadata": {"name": "a"}}]},
        {"metadata": {"resourceVersion": "12"}, "items": [{"metadata": {"name": "b"}}]},
    ]
    listing = await client.list(PODS, "default", keep=lambda item: {"name": item["metadata"]["name"]})
    assert listing.items == ({"name": "a"}, {"name": "b"})
    assert listing.resource_version == 12
    first, second = (set(path.partition("?")[2].split("&")) for _, path, _ in server.seen)
    assert second - first == {"continue=more"}
    assert {"limit=50", "labelSelector=app.kubernetes.io/managed-by%3Dgrpo-operator"} <= first


async def test_a_list_that_the_server_no_longer_goes_on_with_is_a_passing_error(
    client: Client, server: FakeApiServer
):
    server.status, server.body = 410, {"reason": "Expired", "message": "the continue token is too old"}
    with pytest.raises(errors.Transient, match="too old"):
        await client.list(PODS, "default", keep=dict)


@pytest.mark.parametrize("excluded", ["", "127.0.0.1"])
async def test_a_proxy_of_the_environment_is_used_but_for_the_addresses_it_excludes(
    server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, excluded: str
):
    monkeypatch.setenv("http_proxy", server.address)
    monkeypatch.setenv("no_proxy", excluded)
    write_kubeconfig(tmp_path / "config", server="http://127.0.0.1:1", token="first")
    client = await Client.connect(kubeconfig=str(tmp_path / "config"))
    if excluded:
        with pytest.raises(errors.Transient, match="is the API server up"):
            await client.get(PODS, "default", "p")
    else:
        await client.get(PODS, "default", "p")
        assert server.seen
    await client.close()


async def test_the_proxy_of_the_kubeconfig_comes_before_that_of_the_environment(
    server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    write_kubeconfig(tmp_path / "config", server="http://127.0.0.1:1", token="first", proxy=server.address)
    client = await Client.connect(kubeconfig=str(tmp_path / "config"))
    await client.get(PODS, "default", "p")
    assert server.seen
    await client.close()


class FakeStream:
    """Gives one piece for each read, as a stream does whose other end is slow."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)

    async def read(self, num_bytes: int) -> bytes:
        if not self._pieces:
            return b""
        piece = self._pieces.pop(0)
        if len(piece) > num_bytes:
            self._pieces.insert(0, piece[num_bytes:])
        return piece[:num_bytes]


@pytest.mark.parametrize(
    ("pieces", "read"),
    [((b"ab", b"cd"), b"abcd"), ((b"ab", b"cdef", b"gh"), b"abcde"), ((), b"")],
    ids=["in two pieces", "longer than the limit", "empty"],
)
async def test_all_pieces_are_read_up_to_the_limit(pieces: tuple[bytes, ...], read: bytes):
    assert await read_at_most(FakeStream(*pieces), num_bytes=5) == read

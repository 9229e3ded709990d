"""MCP servers that are real programs: those that all episodes use, those of one, and those that are lost."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_example
import pytest
from mcp_at_an_address import serving
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from grpo_runtime.gateway.serving import served
from grpo_runtime.local.ports import free_ports
from grpo_runtime.process.line_worker import WorkerFailedError
from grpo_runtime.rollouts.agents import mcp_servers
from grpo_runtime.rollouts.agents.mcp_servers import McpServers, ServerLostError
from grpo_runtime.rollouts.agents.toolset import ToolFailedError

EXAMPLE = Path(__file__).with_name("mcp_example.py")
TOOLS = ["plus", "fails", "refuses", "processes", "dies", "hangs"]


def server(name: str = "example", **fields: Any) -> dict[str, Any]:
    given = {"name": name, "url": None, "command": None, "per_session": False, **fields}
    return {
        **given,
        "command": given["command"] or (None if given["url"] else [sys.executable, str(EXAMPLE)]),
    }


@asynccontextmanager
async def started(*servers: dict[str, Any]) -> AsyncIterator[McpServers]:
    """Servers that end with the test."""
    found = McpServers(servers)
    async with asyncio.timeout(60):
        await found.start(field="environment game")
        try:
            yield found
        finally:
            await found.close()


def is_there(pid: str) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_all_episodes_share_a_program_and_one_that_has_died_is_started_again(
    capfd: pytest.CaptureFixture[str],
):
    async with started(server()) as servers:
        async with servers.opened() as calls, servers.opened() as others:
            assert list(calls) == TOOLS
            assert await calls["plus"]({"a": 1, "b": 2}) == "3"
            with pytest.raises(ToolFailedError, match="Error executing tool fails"):
                await calls["fails"]({})
            pid, child = (await calls["processes"]({})).split()
            assert (await others["processes"]({})).split()[0] == pid
            with pytest.raises(
                ServerLostError, match=r"MCP server example was lost: .* It wrote: .*the disk is full"
            ):
                await calls["dies"]({})
            with pytest.raises(ServerLostError, match="MCP server example was lost"):
                await others["plus"]({"a": 1, "b": 2})
        async with servers.opened() as calls:
            other, _ = (await calls["processes"]({})).split()
        assert other != pid
        assert not is_there(child)
    assert not is_there(other)
    assert "[MCP server example] the index is read\n" in capfd.readouterr().err


async def test_an_episode_has_a_program_of_its_own_that_ends_with_it_also_where_it_hangs():
    # one that writes no errors lives on too
    silent = ["sh", "-c", f"exec {sys.executable} {EXAMPLE} 2>/dev/null"]
    async with started(server(per_session=True, command=silent)) as servers:
        async with servers.opened() as calls:
            first = (await calls["processes"]({})).split()
        assert not any(map(is_there, first))
        processes: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()

        async def hanging() -> None:
            async with servers.opened() as calls:
                processes.set_result((await calls["processes"]({})).split())
                await calls["hangs"]({})

        episode = asyncio.create_task(hanging())
        found = await processes
        episode.cancel()
        with pytest.raises(asyncio.CancelledError):
            await episode
        assert first[0] != found[0]
        assert not any(map(is_there, found))


async def test_a_server_at_an_address_that_still_starts_is_waited_for_and_is_lost_with_its_program():
    async with serving(EXAMPLE) as (program, url), started(server(url=url)) as servers:
        async with servers.opened() as calls:
            assert await calls["plus"]({"a": 1, "b": 2}) == "3"
            program.kill()
            await program.wait()
            with pytest.raises(ServerLostError, match="MCP server example was lost"):
                await calls["plus"]({"a": 1, "b": 2})
        with pytest.raises(ServerLostError):
            async with servers.opened():
                pass


async def test_a_server_that_is_restarted_at_its_address_is_lost_with_its_sessions_and_connected_to_anew():
    [port] = free_ports(1)
    async with (
        serving(EXAMPLE, "with-sessions", port=port) as (program, url),
        started(server(url=url)) as servers,
        servers.opened() as calls,
        servers.opened() as others,
    ):
        assert await calls["plus"]({"a": 1, "b": 2}) == "3"
        program.kill()
        await program.wait()
        async with serving(EXAMPLE, "with-sessions", port=port):
            async with started(server("newer", url=url)):
                pass  # it listens
            for stale in (calls, others):
                with pytest.raises(ServerLostError, match="MCP server example was lost"):
                    await stale["plus"]({"a": 1, "b": 2})
            async with servers.opened() as newest:
                assert await newest["plus"]({"a": 1, "b": 2}) == "3"


class Proxy:
    """A server with sessions, behind a proxy that counts requests, and says 502 while the server is away."""

    def __init__(self) -> None:
        self.app = mcp_example.server.streamable_http_app()
        self.is_away = False
        self.num_posts = 0
        self._server = mcp_example.with_sessions(self.app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.num_posts += scope["method"] == "POST"
        answer = PlainTextResponse("Bad Gateway", 502) if self.is_away else self._server
        await answer(scope, receive, send)


async def test_a_failure_of_a_tool_costs_one_more_request_and_what_a_proxy_says_is_none():
    proxy = Proxy()
    async with (
        proxy.app.router.lifespan_context(proxy.app),
        served(proxy) as address,
        started(server(url=f"{address}/mcp")) as servers,
    ):
        async with servers.opened() as calls, servers.opened() as others:
            for name, message, num_posts in (
                ("fails", "Error executing tool fails", 1),
                ("refuses", "no such page", 2),
            ):
                proxy.num_posts = 0
                with pytest.raises(ToolFailedError, match=message):
                    await calls[name]({})
                assert proxy.num_posts == num_posts
            proxy.is_away = True
            arguments = {"a": 1, "b": 2}
            lost = await asyncio.gather(
                calls["plus"](arguments), others["plus"](arguments), return_exceptions=True
            )
            assert [type(error) for error in lost] == [ServerLostError] * 2
            with pytest.raises(ServerLostError):
                async with servers.opened():
                    pass
        proxy.is_away = False
        async with servers.opened() as calls:
            assert await calls["plus"](arguments) == "3"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"command": [sys.executable, "-c", "import sys; sys.exit('no key is set')"]},
            "environment game: MCP server example did not start: .* It wrote: no key is set",
        ),
        ({"command": ["sh", "-c", "printf 'no licence' >&2"]}, "did not start: .* It wrote: no licence"),
        ({"command": ["sleep", "1000"]}, r"did not start: it did not start within 0\.5 s"),
        ({"command": ["no-such-program"]}, "did not start: .*no-such-program cannot be run: "),
        ({"url": "http://127.0.0.1:9/mcp"}, r"did not start: it did not start within 2 s: ConnectError: "),
    ],
)
async def test_a_server_that_does_not_start_is_named_with_what_it_wrote(
    fields: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
):
    # a server at an address is asked again until it is late
    seconds = 2.0 if "url" in fields else 0.5 if fields["command"][0] == "sleep" else 30.0
    monkeypatch.setattr(mcp_servers, "START_SECONDS", seconds)
    with pytest.raises(WorkerFailedError, match=sentence):
        async with started(server(**fields)):
            pass

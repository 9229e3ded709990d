"""Servers of the Model Context Protocol, whose tools the policy may call: those that run elsewhere, and
programs that this process starts.

A program has what it starts ended with it (`process.program_tree`), also where this process is killed.
"""

import asyncio
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TextIO

import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import CONNECTION_CLOSED, CallToolResult, TextContent

from grpo_runtime.process import program_tree
from grpo_runtime.process.line_worker import WorkerFailedError
from grpo_runtime.rollouts.agents.toolset import CallTool, Tool, ToolFailedError

START_SECONDS = 60.0
"""Until a server has named its tools."""
STARTS_AT_A_TIME = 4
"""Of the programs of episodes: each keeps a core busy for a second or more, and must start in time."""
_PAUSE_SECONDS = 0.5
"""Between two tries of an address that refuses."""
_GRACE_SECONDS = 1.0
"""Between SIGTERM and SIGKILL, once a program has not ended with its input."""
_LAST_LINES = 10
"""Of its standard error, in messages."""
_MAX_LINE = 1000


class ServerLostError(Exception):
    """A server has ended, cannot be reached or does not speak the protocol."""


@dataclass(frozen=True, kw_only=True)
class McpServer:
    """A server of an environment: exactly one of `url` and `command` is set."""

    name: str
    url: str | None
    command: tuple[str, ...] | None
    per_session: bool

    @property
    def place(self) -> str:
        """What errors call it."""
        return f"MCP server {self.name}"


class Connection:
    """One connection to a server, from its start to its end. It lives in a task of its own, whatever
    happens to those that call."""

    def __init__(self, server: McpServer, *, is_patient: bool = False) -> None:
        """One that `is_patient` tries an address again while it refuses, until it is late: the server may be
        starting."""
        self.tools: Sequence[Tool] = ()
        self._server = server
        self._is_patient = is_patient
        self._refusal = ""
        """Why the newest try did not connect, as the end of a sentence."""
        self._client: Client | None = None
        self._is_to_end = asyncio.Event()
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # where nobody waits any more
        self._ready.add_done_callback(lambda ready: ready.exception())
        self._task = asyncio.create_task(self._live())

    @property
    def is_up(self) -> bool:
        """Whether calls can be made, as far as is known."""
        return self._client is not None

    async def open(self) -> None:
        """Wait until the server has named its tools. Raises ServerLostError where it does not."""
        seconds = START_SECONDS
        is_open = False
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._ready)
            is_open = True
        except TimeoutError:
            raise ServerLostError(
                f"it did not start within {seconds:g} s{self._refusal}{self._said}"
            ) from None
        finally:
            if not is_open:
                await self.close()

    async def call(self, name: str, arguments: dict[str, Any]) -> str:
        """What a tool of the server answers. Raises ToolFailedError for its failure, and ServerLostError."""
        client = self._client
        if client is None:
            raise self._lost("it has ended")
        try:
            result = await client.call_tool(name, arguments)
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise self._lost(str(error)) from error
            await self._require_answer(client)
            raise ToolFailedError(str(error)) from error
        except (RuntimeError, ValueError) as error:  # a result that its own schema refuses
            raise ToolFailedError(str(error)) from error
        except Exception as error:  # of the transport, which has many
            raise self._lost(f"{type(error).__name__}: {error}") from error
        text = _text(result)
        if result.is_error:
            raise ToolFailedError(text)
        return text

    async def _require_answer(self, client: Client) -> None:
        """Ask for the tools again. What a proxy says for a server that is away, and a server that no longer
        knows a session because it was restarted, has the codes that failures of tools have. Raises
        ServerLostError where there is no answer."""
        try:
            await client.list_tools(cache_mode="bypass")
        except Exception as error:  # of the server, a proxy or the transport
            raise self._lost(_sentence(error)) from error

    async def close(self) -> None:
        """End the connection, and the program with all that it has started."""
        self._note_end()
        if not self._ready.done():
            self._task.cancel()
        # also where the caller is cancelled it ends
        await asyncio.shield(asyncio.wait([self._task]))

    async def _live(self) -> None:
        try:
            while not await self._has_lived():
                pass
        except Exception as error:
            self._fail(_sentence(error))
        finally:
            self._client = None
            self._fail("it was ended as it started")

    async def _has_lived(self) -> bool:
        """Connect, and live to the end; False, a while later, where an address refuses and is to be tried
        again."""
        try:
            async with self._logged() as errors, Client(self._transport(errors)) as client:
                # the program alone has it
                errors.close()
                self.tools = await self._listed(client)
                self._client = client
                self._ready.set_result(None)
                await self._is_to_end.wait()
        except Exception as error:
            is_refused = isinstance(_cause(error), httpx2.ConnectError)
            if not (self._is_patient and is_refused) or self._ready.done():
                raise
            self._refusal = f": {_sentence(error)}"
            await asyncio.sleep(_PAUSE_SECONDS)
            return False
        return True

    def _fail(self, why: str) -> None:
        if not self._ready.done():
            self._ready.set_exception(ServerLostError(f"{why}{self._said}"))

    def _lost(self, why: str) -> ServerLostError:
        self._note_end()
        return ServerLostError(f"{self._server.place} was lost: {why}{self._said}")

    @property
    def _said(self) -> str:
        """The last lines of its standard error, as the end of a sentence."""
        return f". It wrote: {' / '.join(self._lines)}" if self._lines else ""

    async def _listed(self, client: Client) -> list[Tool]:
        found, cursor = [], None
        while True:
            page = await client.list_tools(cursor=cursor)
            found += page.tools
            cursor = page.next_cursor
            if cursor is None:
                break
        return [
            Tool(
                json={
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description or "",
                        "parameters": tool.input_schema,
                    },
                },
                place=self._server.place,
            )
            for tool in found
        ]

    def _transport(self, errors: TextIO) -> Any:
        """What a Client takes. A program gets our environment, which has no credentials of the job."""
        server = self._server
        if server.url is not None:
            return server.url
        assert server.command is not None
        tree = ("-I", "-S", program_tree.__file__, str(os.getpid()), str(_GRACE_SECONDS))
        parameters = StdioServerParameters(
            command=sys.executable, args=[*tree, *server.command], env=dict(os.environ)
        )
        return self._program(parameters, errors)

    @asynccontextmanager
    async def _program(
        self, parameters: StdioServerParameters, errors: TextIO
    ) -> AsyncIterator[tuple[Any, Any]]:
        """The streams of a program: of messages from it, and to it."""
        async with stdio_client(parameters, errlog=errors) as (messages, requests):
            yield _Messages(messages, on_end=self._note_end), requests

    def _note_end(self) -> None:
        """Nothing can be called any more."""
        self._client = None
        self._is_to_end.set()

    @asynccontextmanager
    async def _logged(self) -> AsyncIterator[TextIO]:
        """The writing end of a pipe: what is written there goes to our standard error, with the server's
        name."""
        reading, writing = os.pipe()
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb", buffering=0)
        )
        logging = asyncio.create_task(self._log(reader))
        errors = os.fdopen(writing, "w")
        try:
            yield errors
        finally:
            errors.close()
            await asyncio.wait([logging], timeout=_GRACE_SECONDS)
            logging.cancel()
            transport.close()

    async def _log(self, reader: asyncio.StreamReader) -> None:
        rest = b""
        while read := await reader.read(1 << 16):
            *lines, rest = (rest + read).split(b"\n")
            if len(rest) > _MAX_LINE:
                lines, rest = [*lines, rest], b""
            self._note_lines(lines)
        # what has ended in the middle of a line often said why
        self._note_lines([rest] if rest else [])

    def _note_lines(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            text = line.decode(errors="replace").rstrip()[:_MAX_LINE]
            self._lines.append(text)
            sys.stderr.write(f"[{self._server.place}] {text}\n")


class _Messages:
    """What a program says. Its end, which is that of the program, is noted also while nobody calls."""

    def __init__(self, stream: Any, *, on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_end = on_end

    async def receive(self) -> Any:
        return await self._stream.receive()

    async def aclose(self) -> None:
        self._on_end()
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return await self._stream.__anext__()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._on_end()
        await self._stream.__aexit__(kind, error, trace)


class SharedServer:
    """A server that all episodes use, begun anew where it was lost."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._newest: Connection | None = None
        self._lock = asyncio.Lock()

    async def connection(self, *, is_patient: bool = False) -> Connection:
        """One that is up; `is_patient` as there. Raises ServerLostError."""
        async with self._lock:
            if self._newest is None or not self._newest.is_up:
                if self._newest is not None:
                    await self._newest.close()
                self._newest = Connection(self._server, is_patient=is_patient)
                await self._newest.open()
            return self._newest

    async def close(self) -> None:
        """End the newest one."""
        async with self._lock:
            if self._newest is not None:
                await self._newest.close()


class McpServers:
    """All servers of an environment."""

    def __init__(self, servers: Sequence[Mapping[str, Any]]) -> None:
        self._servers = [
            McpServer(**{**server, "command": server["command"] and tuple(server["command"])})
            for server in servers
        ]
        self._shared = {
            server.name: SharedServer(server) for server in self._servers if not server.per_session
        }
        self._places: dict[str, Sequence[str]] = {}
        self._starts = asyncio.Semaphore(STARTS_AT_A_TIME)

    async def start(self, *, field: str) -> list[Tool]:
        """Start all that is shared, and look at what is not; returns their tools. Raises WorkerFailedError
        for one that does not start."""
        found = await asyncio.gather(*(self._tools(server, field=field) for server in self._servers))
        for server, tools in zip(self._servers, found, strict=True):
            self._places[server.name] = [tool.name for tool in tools]
        return [tool for tools in found for tool in tools]

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[dict[str, CallTool]]:
        """The calls of all tools, for one episode. Raises ServerLostError."""
        own: list[Connection] = []
        calls: dict[str, CallTool] = {}
        try:
            for server in self._servers:
                if server.per_session:
                    own.append(await self._started(server))
                    connection = own[-1]
                else:
                    connection = await self._shared[server.name].connection()
                for name in self._places[server.name]:
                    calls[name] = _call_of(connection, name)
            yield calls
        finally:
            await asyncio.gather(*(connection.close() for connection in own))

    async def close(self) -> None:
        """End all that is shared."""
        await asyncio.gather(*(server.close() for server in self._shared.values()))

    async def _tools(self, server: McpServer, *, field: str) -> Sequence[Tool]:
        try:
            if not server.per_session:
                return (await self._shared[server.name].connection(is_patient=True)).tools
            connection = await self._started(server, is_patient=True)
            await connection.close()
            return connection.tools
        except ServerLostError as error:
            raise WorkerFailedError(f"{field}: {server.place} did not start: {error}") from error

    async def _started(self, server: McpServer, *, is_patient: bool = False) -> Connection:
        async with self._starts:
            connection = Connection(server, is_patient=is_patient)
            await connection.open()
        return connection


def _call_of(connection: Connection, name: str) -> CallTool:
    async def call(arguments: dict[str, Any]) -> str:
        return await connection.call(name, arguments)

    return call


def _text(result: CallToolResult) -> str:
    parts = [
        part.text if isinstance(part, TextContent) else f"({part.type} that is not shown)"
        for part in result.content
    ]
    return "\n".join(parts)


def _cause(error: BaseException) -> BaseException:
    """What is behind groups of exceptions."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _sentence(error: BaseException) -> str:
    cause = _cause(error)
    return f"{type(cause).__name__}: {cause}"

"""Programs that are MCP servers at an address, for as long as a test needs them."""

import asyncio
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from grpo_runtime.local.ports import free_ports


@asynccontextmanager
async def serving(
    program: Path, *arguments: str, port: int | None = None
) -> AsyncIterator[tuple[Process, str]]:
    """A program that takes its port as its first argument, and its address, where it may not listen yet."""
    port = port or free_ports(1)[0]
    process = await asyncio.create_subprocess_exec(sys.executable, str(program), f"{port}", *arguments)
    try:
        yield process, f"http://127.0.0.1:{port}/mcp"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()

"""Reads an answer up to a limit, because the other side chooses how long it is."""

import aiohttp


async def read_at_most(stream: aiohttp.StreamReader, *, num_bytes: int) -> bytes:
    """The whole body, or its first `num_bytes`. A single read would return only what has arrived by then."""
    body = bytearray()
    while len(body) < num_bytes:
        chunk = await stream.read(num_bytes - len(body))
        if not chunk:
            break
        body += chunk
    return bytes(body)

"""Where rollout engines may be: a list of hosts, each with all the addresses that its name resolves to."""

import asyncio
import socket
from collections.abc import Sequence

from grpo_api.contract.endpoints import ROLLOUT_PORT
from grpo_runtime.engines.fleet.engine_client import Address
from grpo_runtime.errors import UserError


def parse_hosts(text: str) -> tuple[Address, ...]:
    """Read a comma-separated list of `host[:port]`. The port is ROLLOUT_PORT where it is left out.

    In a cluster it is one name, that of the headless Service. Raises UserError.
    """
    hosts = []
    for part in text.split(","):
        host, colon, port = part.strip().rpartition(":")
        if not colon:
            host, port = port, str(ROLLOUT_PORT)
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise UserError(f"rollout host {part.strip()!r} is not understood: write HOST or HOST:PORT")
        hosts.append(Address(host, int(port)))
    return tuple(hosts)


async def resolve(hosts: Sequence[Address]) -> set[Address]:
    """Every address of every host, now. A name that does not resolve yet has none."""
    loop = asyncio.get_running_loop()
    found: set[Address] = set()
    for host in hosts:
        try:
            entries = await loop.getaddrinfo(host.host, host.port, type=socket.SOCK_STREAM)
        except socket.gaierror:
            continue
        found |= {Address(str(entry[4][0]), host.port) for entry in entries}
    return found

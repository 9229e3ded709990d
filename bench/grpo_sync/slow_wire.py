"""A network as slow as one between machines: the loopback of a network namespace, held back by `tc`."""

import os
import shutil
import subprocess
from collections.abc import Sequence

from grpo_bench.errors import BenchError

_BURST = "1mb"
"""What may pass at once; a packet of loopback has up to 64 KiB."""


def require_slow_wire() -> None:
    """Raises BenchError when this user or machine cannot make such a network."""
    if os.geteuid() != 0:
        raise BenchError(
            "a wire of a stated speed is made by root only: run this as root, or give --wires ''"
        )
    for program in ("unshare", "ip", "tc"):
        if shutil.which(program) is None:
            raise BenchError(f"{program} is not installed: it is in util-linux or iproute2")


def run_behind(gbit_per_second: float, command: Sequence[str], *, environment: dict[str, str]) -> str:
    """Run `command` where loopback carries so much in all, or with 0 as much as it can, and return what it
    prints. Raises BenchError when it fails. Its error output goes where ours goes."""
    held_back = []
    if gbit_per_second:
        rate = f"{gbit_per_second * 1000:.0f}mbit"
        limit = f"tc qdisc add dev lo root tbf rate {rate} burst {_BURST} latency 100ms"
        held_back = ["unshare", "--net", "sh", "-c", f'ip link set lo up && {limit} && exec "$@"', "sh"]
    done = subprocess.run(
        [*held_back, *command], env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        raise BenchError(f"a process of the bench ended with {done.returncode}: see above")
    return done.stdout

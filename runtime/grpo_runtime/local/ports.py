"""Ports of this machine for processes that get theirs before they start.

A port that the kernel gives out may be taken by any outgoing connection before a process listens there, so
these are outside of the range from which the kernel takes them.
"""

import errno
import random
import socket
from collections.abc import Sequence
from pathlib import Path

LOOPBACK = "127.0.0.1"
_KERNELS_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_KERNELS_RANGE_ELSEWHERE = (49152, 65535)
"""RFC 6335, where the kernel does not say."""
_FIRST, _LAST = 10_000, 65_535
_given: set[int] = set()
"""Ports that this process gave out: their processes may not listen yet."""


def free_ports(number: int) -> list[int]:
    """`number` different TCP ports of the loopback address on which nobody listens, and which no outgoing
    connection takes.

    Another process may still choose the same one before ours listens: a trainer says so as AddressInUse, and
    its next attempt gets another. Raises OSError when there are not so many.
    """
    candidates = list(outside_of(kernels_range()) - _given)
    # forks, and processes that seed `random` alike, would try the same ports in the same order
    random.SystemRandom().shuffle(candidates)
    found: list[int] = []
    for port in candidates:
        if len(found) == number:
            break
        if _is_free(port):
            found.append(port)
    if len(found) < number:
        raise OSError(errno.EADDRNOTAVAIL, f"{number} ports are needed, and {len(found)} are free")
    _given.update(found)
    return found


def kernels_range() -> tuple[int, int]:
    """The first and the last port that the kernel gives out."""
    if not _KERNELS_RANGE.exists():
        return _KERNELS_RANGE_ELSEWHERE
    first, last = map(int, _KERNELS_RANGE.read_text().split())
    return first, last


def outside_of(kernels: Sequence[int]) -> set[int]:
    """The ports that may be chosen: all, where the kernel may give out any."""
    first, last = kernels
    everything = set(range(_FIRST, _LAST + 1))
    return everything - set(range(first, last + 1)) or everything


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind((LOOPBACK, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
    return True

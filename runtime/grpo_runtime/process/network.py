"""What every process of ours sets for its sockets: the address to listen on, and how long DNS may keep it
waiting."""

import os
import socket

ANY_ADDRESS = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 - a pod listens on its own address
"""Takes connections of both versions of IP, which a cluster may use."""
OPTIONS = "timeout:1 attempts:3"
"""Options of resolv.conf(5): 1 s for an answer, which is asked for three times."""


def bound_name_lookups() -> None:
    """Set OPTIONS for this process and those that it starts, where RES_OPTIONS does not have its own.

    torch's TCPStore, at which ranks and groups of engines meet, asks DNS for the name of each of its peers,
    only to print it (socket.cpp). Without an answer that takes glibc 10 s by default, as long as a group may
    take to meet, and 5 s after a single packet that was lost.
    """
    os.environ.setdefault("RES_OPTIONS", OPTIONS)

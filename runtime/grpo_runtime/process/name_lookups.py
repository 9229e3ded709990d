"""Bounds how long DNS may keep a process waiting.

torch's TCPStore, at which ranks and groups of engines meet, asks DNS for the name of each of its peers, only
to print it (socket.cpp). Without an answer that takes glibc 10 s by default, as long as a group may take to
meet, and 5 s after a single packet that was lost.
"""

import os

OPTIONS = "timeout:1 attempts:3"
"""Of resolv.conf(5): 1 s for an answer, which is asked for three times."""


def bound_name_lookups() -> None:
    """Set the options for this process and those that it starts, where RES_OPTIONS does not have its own."""
    os.environ.setdefault("RES_OPTIONS", OPTIONS)

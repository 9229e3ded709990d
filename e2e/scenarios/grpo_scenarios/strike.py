"""Signals processes in the moment in which something certain is sent to a pod. Standard library only.

Run as a program in the network namespace of a node, it reads the packets there.
"""

import argparse
import contextlib
import os
import signal
import socket
import struct
import time
from collections.abc import Iterator, Sequence

_EVERY_PROTOCOL = 0x0003
_TCP = 6


def payloads_to(address: str, port: int) -> Iterator[bytes]:
    """What is sent to an address from now on, packet by packet."""
    wanted = socket.inet_aton(address)
    # the tap for every protocol sees what one pod sends to another; that for IP sees the node's own alone
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_EVERY_PROTOCOL)) as tap:
        tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**24)
        print("listening", flush=True)
        while True:
            packet, (_, _, kind, _, _) = tap.recvfrom(2**16)
            # each packet passes twice: as it comes from the one pod, and as it goes to the other
            if kind == socket.PACKET_OUTGOING or len(packet) < 40:
                continue
            if packet[0] >> 4 != 4 or packet[9] != _TCP or packet[16:20] != wanted:
                continue
            segment = packet[4 * (packet[0] & 0xF) :]
            if struct.unpack("!H", segment[2:4])[0] != port:
                continue
            yield segment[4 * (segment[12] >> 4) :]


def send_to_all(pids: Sequence[int], number: signal.Signals) -> None:
    """Signal process 1 of a container, and then the others, of which some may have ended by now.

    Raises ProcessLookupError when process 1 is gone.
    """
    first, *others = pids
    os.kill(first, number)
    for pid in others:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def main() -> None:
    """Wait for a packet with the content, signal the processes, and print when that was."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--content", required=True)
    parser.add_argument("--pids", nargs="+", type=int, required=True)
    parser.add_argument("--signal", required=True)
    options = parser.parse_args()
    number = signal.Signals[options.signal]
    # before all other processes, for the sake of phases that are over in milliseconds
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    content = options.content.encode()
    for payload in payloads_to(options.address, options.port):
        if content in payload:
            break
    send_to_all(options.pids, number)
    print(time.time(), flush=True)


if __name__ == "__main__":
    main()

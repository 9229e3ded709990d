"""The address of this machine at which another one can reach it."""

import socket


def local_address_towards(host: str) -> str:
    """The address that packets to `host` (a name or an address) would leave from.

    Raises OSError when `host` cannot be resolved or there is no route. Sends nothing.
    """
    family, kind, protocol, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        # connect on a datagram socket only chooses the route
        probe.connect(target)
        return str(probe.getsockname()[0])

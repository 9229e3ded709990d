"""The address at which a listener takes connections of both versions of IP, which a cluster may use."""

import socket

ANY_ADDRESS = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 - a pod listens on its own address

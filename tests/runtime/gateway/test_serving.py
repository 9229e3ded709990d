"""The address at which the gateway is served."""

import socket

from grpo_runtime.gateway.serving import LOCALHOST, listening


def test_an_answer_in_two_parts_does_not_wait_until_the_first_is_confirmed() -> None:
    with listening(LOCALHOST) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

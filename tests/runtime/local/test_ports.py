"""Ports that nobody else takes before a process of ours listens there."""

import socket

import pytest

from grpo_runtime.local import ports
from grpo_runtime.local.ports import LOOPBACK, free_ports, kernels_range, outside_of


def test_no_port_is_given_twice_and_none_is_one_that_a_connection_may_take() -> None:
    found = [*free_ports(20), *free_ports(20)]
    assert len(set(found)) == 40
    first, last = kernels_range()
    assert not [port for port in found if first <= port <= last]


@pytest.mark.parametrize(
    ("kernels", "num_ports", "lowest"),
    [
        ((32768, 60999), 27_304, 10_000),
        ((10_000, 60_000), 5535, 60_001),
        ((1024, 65535), 55_536, 10_000),
    ],
)
def test_where_the_kernel_may_give_out_any_port_any_is_taken(
    kernels: tuple[int, int], num_ports: int, lowest: int
) -> None:
    found = outside_of(kernels)
    assert (len(found), min(found)) == (num_ports, lowest)


def test_a_port_on_which_somebody_listens_is_not_free() -> None:
    with socket.socket() as listener:
        (port,) = free_ports(1)
        listener.bind((LOOPBACK, port))
        assert not ports._is_free(port)

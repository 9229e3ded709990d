"""What two ranks know of each other once they have met."""

import socket
from pathlib import Path

import pytest
from forks import run_ranks

from grpo_runtime.errors import AddressInUseError
from grpo_runtime.local.ports import free_ports
from grpo_runtime.trainer.distributed import Ranks, StopRequest

SCRIPT = Path(__file__).with_name("meeting_ranks.py")


@pytest.mark.processes
def test_both_ranks_know_of_each_engine_what_it_has_finished_and_whether_it_is_started_again() -> None:
    (port,) = free_ports(1)
    assert run_ranks(SCRIPT, str(port)) == "3 40 False True\n" * 2


def test_a_port_on_which_another_process_listens_is_said_as_such() -> None:
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(AddressInUseError, match=f"port {port}, at which the .* meet, is in use"):
            Ranks.meet(
                rank=0, world_size=1, address="127.0.0.1", port=port, backend="gloo", stop=StopRequest()
            )

"""What two ranks know of each other once they have met."""

from pathlib import Path

from rank_script import run_ranks

from grpo_runtime.local.environments import free_ports

SCRIPT = Path(__file__).with_name("meeting_ranks.py")


def test_both_ranks_know_of_each_engine_what_it_has_finished_and_whether_it_is_started_again() -> None:
    (port,) = free_ports(1)
    assert run_ranks(SCRIPT, str(port)) == "3 40 False True\n" * 2

"""Where a trainer pod is told to look for engines."""

import pytest

from grpo_runtime.engines.fleet.engine_client import Address
from grpo_runtime.engines.fleet.settings import parse_hosts
from grpo_runtime.errors import UserError


def test_one_name_is_the_headless_service_at_the_usual_port() -> None:
    assert parse_hosts("job-rollout.default.svc") == (Address("job-rollout.default.svc", 8000),)


def test_a_list_with_ports_is_for_processes_of_one_machine() -> None:
    assert parse_hosts("127.0.0.1:18000, 127.0.0.1:18001") == (
        Address("127.0.0.1", 18000),
        Address("127.0.0.1", 18001),
    )


@pytest.mark.parametrize("text", ["", "host:", "host:0", "host:70000", ":8000", "a,,b", "host:http"])
def test_what_is_not_a_host_is_named(text: str) -> None:
    with pytest.raises(UserError, match="is not understood"):
        parse_hosts(text)

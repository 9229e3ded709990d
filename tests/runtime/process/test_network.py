"""A silent DNS, in a network and with a resolv.conf of its own, does not keep processes from meeting."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from grpo_runtime.process.network import OPTIONS, bound_name_lookups

IN_OWN_NETWORK = ("unshare", "--net", "--mount", "sh", "-e", "-c")
MEETING_SECONDS = 10.0
"""The shortest that a group may take to meet."""
SETUP = """
ip link set lo up
mount --bind "$1" /etc/resolv.conf
exec "$2" "$3"
"""
MEET = f"""
import socket
from datetime import timedelta

silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
silent.bind(("127.0.0.9", 53))

from grpo_runtime.process.network import bound_name_lookups
bound_name_lookups()

from torch.distributed import TCPStore
from grpo_runtime.weight_sync.group import host_store

hosted = host_store("127.0.0.1", timeout_seconds={MEETING_SECONDS})
limit = timedelta(seconds={MEETING_SECONDS})
found = TCPStore("127.0.0.1", hosted.port, is_master=False, timeout=limit, wait_for_workers=False)
found.set("a", "met")
print(hosted.get("a").decode())
silent.setblocking(False)
assert b"in-addr" in silent.recv(999), "nobody has asked"
"""


def test_a_store_is_met_at_although_dns_does_not_answer(tmp_path: Path) -> None:
    probe = subprocess.run(
        [*IN_OWN_NETWORK, "ip link set lo up"], check=False, capture_output=True, text=True
    )
    if probe.returncode != 0:
        pytest.skip(f"no network of its own can be made here: {probe.stderr.strip()}")
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.9\n")
    (tmp_path / "meet.py").write_text(textwrap.dedent(MEET))
    environment = {name: value for name, value in os.environ.items() if name != "RES_OPTIONS"}
    arguments = (str(tmp_path / "resolv.conf"), sys.executable, str(tmp_path / "meet.py"))
    done = subprocess.run(
        [*IN_OWN_NETWORK, SETUP, "sh", *arguments],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "met\n"), done.stderr


@pytest.mark.parametrize("given", [None, "timeout:9"])
def test_who_has_set_the_options_keeps_them(monkeypatch: pytest.MonkeyPatch, given: str | None) -> None:
    monkeypatch.delenv("RES_OPTIONS", raising=False)
    if given:
        monkeypatch.setenv("RES_OPTIONS", given)
    bound_name_lookups()
    assert os.environ["RES_OPTIONS"] == (given or OPTIONS)

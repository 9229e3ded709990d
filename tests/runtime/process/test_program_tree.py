"""A program ends with all that it has started, and how it ended is what its parent is told."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from grpo_runtime.process import program_tree
from grpo_runtime.process.procfs import kernel_state

HUNG_SECONDS = 30.0


async def started(*command: str, grace_seconds: float = 0.2) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", program_tree.__file__, str(os.getpid()), str(grace_seconds)),
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, str, str]:
    async with asyncio.timeout(HUNG_SECONDS):
        output, errors = await process.communicate()
    return process.returncode, output.decode(), errors.decode()


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
)
async def test_the_exit_code_is_that_of_the_program_or_of_its_signal(script: str, code: int) -> None:
    assert await ended(await started("sh", "-c", f"echo said; {script}")) == (code, "said\n", "")


def test_processes_that_the_kernel_hides_have_no_descendants_and_fail_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As /proc does with `hidepid` those of other users: 1 is there, and may not be read."""
    read = open

    def opened(path: str, mode: str) -> object:
        if path == "/proc/1/stat":
            raise PermissionError(path)
        return read(path, mode)

    monkeypatch.setattr("builtins.open", opened)
    assert os.getpid() in program_tree.descendants(os.getppid())


async def test_a_program_that_is_not_there_is_told() -> None:
    code, _, errors = await ended(await started("nothere"))
    assert (code, errors) == (127, "nothere cannot be run: [Errno 2] No such file or directory\n")


LEAVES_OTHERS = """
sleep 300 & echo $!
setsid sleep 300 & echo $!
(setsid sh -c 'echo $$; sleep 300 & echo $!; touch "$1"; exec sleep 300' sh "$1" &)
until [ -e "$1" ]; do sleep 0.01; done
"""
"""A child, one in a session of its own, and one that was left by its parent, with a child."""


async def test_what_a_program_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    code, output, _ = await ended(await started("sh", "-c", LEAVES_OTHERS, "sh", str(tmp_path / "left")))
    pids = [int(pid) for pid in output.split()]
    assert code == 0 and len(pids) == 4
    assert not any(is_running(pid) for pid in pids)


async def test_a_program_is_asked_to_end_and_killed_where_it_does_not() -> None:
    for trap, grace_seconds, wanted in (
        ("echo ends; exit 3", HUNG_SECONDS, (3, "begins\nends\n")),
        ("", 0.2, (137, "begins\n")),
    ):
        script = f"trap '{trap}' TERM; echo begins; while :; do sleep 0.05; done"
        process = await started("sh", "-c", script, grace_seconds=grace_seconds)
        assert process.stdout is not None
        begun = await process.stdout.readline()
        process.terminate()
        code, output, _ = await ended(process)
        assert (code, begun.decode() + output) == wanted


async def test_a_program_ends_with_the_parent_that_it_was_started_for(tmp_path: Path) -> None:
    """The parent starts it, and is killed."""
    parent = """
import os, subprocess, sys
tree = [sys.executable, "-I", "-S", sys.argv[1], str(os.getpid()), "0.2"]
subprocess.Popen([*tree, "sh", "-c", "echo $$; exec sleep 300"]).wait()
"""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", parent, program_tree.__file__), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(HUNG_SECONDS):
        pid = int(await process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        # both have the pipe
        assert await process.stdout.read() == b""
        await process.wait()
        while is_running(pid):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return kernel_state(pid) != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False

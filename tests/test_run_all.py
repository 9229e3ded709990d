"""`make test`: what it skips, with the reason, where no containers can run, and what a failure stops."""

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from grpo_cluster.ability import obstacle


@pytest.fixture(scope="module")
def run_all() -> ModuleType:
    spec = importlib.util.spec_from_file_location("run_all", Path(__file__).with_name("run_all.py"))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["run_all"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_root_without_the_right_to_mount_cannot_run_containers() -> None:
    refused = ("bash", "-c", "echo 'unshare failed: Operation not permitted' >&2; exit 1")
    assert obstacle(user_id=0, probe=refused) == (
        "namespaces and mounts are not allowed (unshare failed: Operation not permitted)"
    )
    assert obstacle(user_id=0, probe=("no-such-program",)) == "there is no program no-such-program"


@pytest.mark.parametrize(
    ("marker", "parts"), [("engine", ("ENGINES",)), ("apiserver", ("OF_THE_API_SERVER",))]
)
def test_every_test_with_a_marker_is_in_a_folder_of_its_parts(
    run_all: ModuleType, marker: str, parts: tuple[str, ...]
) -> None:
    root = Path(__file__).parents[1]
    asked = [root / each for part in parts for each in getattr(run_all, part) if not each.startswith("--")]
    mark = f"pytest.mark.{marker}"
    marked = [path for path in (root / "tests").rglob("*.py") if mark in path.read_text()]
    assert marked
    assert [path for path in marked if not any(path.is_relative_to(folder) for folder in asked)] == []


def stages(run_all: ModuleType, folder: Path) -> list[object]:
    def part(name: str, *, needs_cluster: bool = False) -> object:
        return run_all.Part(name, ("touch", str(folder / name)), 30, needs_cluster=needs_cluster)

    return [[[part("setup")]], [[part("programs", needs_cluster=True)]], [[part("pure")], [part("engine")]]]


def test_parts_that_need_containers_are_skipped_with_the_reason_and_the_others_run(
    run_all: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_all.main(stages(run_all, tmp_path), why_no_cluster="user 5 is not root") == 0
    assert {path.name for path in tmp_path.iterdir()} == {"setup", "pure", "engine"}
    lines = capsys.readouterr().out.splitlines()
    assert "this machine cannot run containers (user 5 is not root); skipped are:" in lines
    assert any(line.startswith("programs") and "skipped: user 5 is not root" in line for line in lines)
    assert lines[-1] == "parts: 3 passed, 0 failed, 1 skipped"


def test_in_continuous_integration_nothing_may_be_skipped(
    run_all: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run_all.main(stages(run_all, tmp_path), why_no_cluster="user 5 is not root", is_ci=True)
    assert code == 1
    assert list(tmp_path.iterdir()) == []
    assert "with CI=true nothing may be skipped" in capsys.readouterr().out


def test_after_a_failed_part_that_is_needed_only_other_lanes_of_its_stage_run(
    run_all: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def part(name: str, *command: str, is_needed: bool = False) -> object:
        return run_all.Part(name, command or ("touch", str(tmp_path / name)), 30, is_needed=is_needed)

    lanes = [[part("images", "false", is_needed=True), part("pods")], [part("check", "false"), part("pure")]]
    assert run_all.main([lanes, [[part("later")]]]) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"pure"}
    outcomes = dict(line.split(maxsplit=2)[::2] for line in capsys.readouterr().out.splitlines()[-9:-3])
    assert outcomes["pods"] == outcomes["later"] == "not run"
    assert outcomes["images"] == outcomes["check"] == "FAILED (1)"


STOPPED_RUN = """
import sys
sys.path.insert(0, {folder!r})
import run_all
def part(name):
    script = "import os, signal, sys; print(os.getpid(), file=open(sys.argv[1], 'w')); signal.pause()"
    return run_all.Part(name, (sys.executable, "-c", script, {pids!r}), 600)
run_all.stop_on_signals()
sys.exit(run_all.main([[[part("pods")], [part("pure"), part("never")]], [[part("later")]]]))
"""


def test_sigterm_ends_the_parts_that_run_and_begins_no_other(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    os.mkfifo(pids)
    script = STOPPED_RUN.format(folder=str(Path(__file__).parent), pids=str(pids))
    run = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    # open at both ends, so that nothing waits for the other one to open it
    with os.fdopen(os.open(pids, os.O_RDWR)) as started:
        parts = [int(started.readline()), int(started.readline())]
    run.send_signal(signal.SIGTERM)
    output, _ = run.communicate(timeout=60)
    assert run.returncode == 1
    for pid in parts:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert output.count("FAILED (stopped)") == 2
    assert output.count("not run") == 2

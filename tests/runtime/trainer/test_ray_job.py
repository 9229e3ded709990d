"""Engines as actors of Ray, with Ray itself and real engines: the job computes the same, and survives the
loss of an engine, but not that of Ray."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from local_job import start_trainer
from ray_processes import ACTOR, RAYLET, kill_one, listening, pids_of, require_nothing_left
from test_colocated_job import copy_job, records, tokens

from grpo_runtime.engines.colocated.ray.node_folder import TOKEN_FILE

pytestmark = [pytest.mark.engine, pytest.mark.matrix]

STEPS = 12
LONG = 10_000


def trained_bytes(folder: Path) -> bytes:
    return (folder / "output" / "model" / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def without_ray(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same job with `engine.process: Own`."""
    folder = tmp_path_factory.mktemp("own")
    code, message = start_trainer(folder, copy_job(steps=STEPS, process="Own")).end()
    assert code == 0, message
    return folder


def test_a_job_on_ray_computes_what_it_does_without_to_the_last_bit(
    tmp_path: Path, without_ray: Path
) -> None:
    trainer = start_trainer(tmp_path, copy_job(steps=STEPS, executor="Ray"))
    trainer.wait_until(lambda progress: progress.step >= 1)
    [folder] = (path.resolve() for path in tmp_path.glob("cache-*/run/ray"))
    assert len(pids_of(trainer, ACTOR)) == 2
    code, message = trainer.end()
    assert code == 0, f"{message}\n{trainer.log()}"
    assert tokens(records(tmp_path)) == tokens(records(without_ray))
    assert trained_bytes(tmp_path) == trained_bytes(without_ray)
    require_nothing_left(trainer)
    assert not folder.exists()


def test_an_engine_that_is_killed_is_made_again_and_changes_no_bit(tmp_path: Path, without_ray: Path) -> None:
    trainer = start_trainer(tmp_path, copy_job(steps=STEPS, executor="Ray"))
    trainer.wait_until(lambda progress: progress.step >= 2)
    before = set(pids_of(trainer, ACTOR))
    kill_one(trainer, ACTOR)
    code, message = trainer.end()
    assert code == 0, f"{message}\n{trainer.log()}"
    assert len(before) == 2
    assert "is lost and started again: its Ray actor ended" in trainer.whole_log()
    assert tokens(records(tmp_path)) == tokens(records(without_ray))
    assert trained_bytes(tmp_path) == trained_bytes(without_ray)
    require_nothing_left(trainer)


def test_only_who_has_the_token_is_let_in_and_the_loss_of_ray_ends_the_attempt(tmp_path: Path) -> None:
    trainer = start_trainer(tmp_path, copy_job(num_ranks=1, steps=LONG, executor="Ray"))
    trainer.wait_until(lambda progress: progress.step >= 1)
    [folder] = (path.resolve() for path in tmp_path.glob("cache-*/run/ray"))
    token = (folder / TOKEN_FILE).read_text()
    [head] = re.findall(r"Ray listens at (\S+)", trainer.whole_log())
    assert says_of_joining(head, token=token) == "joined"
    assert says_of_joining(head, token="0" * 64) == "refused"
    assert says_of_joining(head, token=None) == "refused"
    assert (folder / TOKEN_FILE).stat().st_mode & 0o077 == 0
    assert folder.stat().st_mode & 0o077 == 0
    assert token not in trainer.whole_log()
    assert {address for address, _ in listening(trainer)} <= {"127.0.0.1", "::1"}
    assert int(head.rpartition(":")[2]) in {port for _, port in listening(trainer)}

    kill_one(trainer, RAYLET)
    code, message = trainer.end()
    assert (code, message.reason) == (75, "TransientError"), trainer.log()
    assert "Ray has ended in this pod" in message.message
    assert "the last lines of Ray's raylet.out" in trainer.whole_log()
    require_nothing_left(trainer)


def test_a_job_on_ray_saves_when_it_is_asked_to_stop(tmp_path: Path) -> None:
    trainer = start_trainer(tmp_path, copy_job(num_ranks=1, steps=LONG, executor="Ray"))
    trainer.wait_until(lambda progress: progress.step >= 1)
    trainer.terminate()
    code, message = trainer.end()
    assert (code, message.reason) == (143, "Terminated"), trainer.log()
    assert message.progress is not None
    assert message.progress.checkpoint_step == message.progress.step
    require_nothing_left(trainer)


def test_ray_ends_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    trainer = start_trainer(tmp_path, copy_job(num_ranks=1, steps=LONG, executor="Ray"))
    trainer.wait_until(lambda progress: progress.step >= 1)
    [folder] = (path.resolve() for path in tmp_path.glob("cache-*/run/ray"))
    trainer.process.kill()
    trainer.process.wait()
    require_nothing_left(trainer)
    # a process that is killed leaves its files, in a pod until the pod is gone
    shutil.rmtree(folder)


_JOIN = """
import sys, ray
try:
    ray.init(sys.argv[1], log_to_driver=False)
except Exception:
    print("refused")
else:
    print("joined", ray.nodes()[0]["Alive"])
"""


def says_of_joining(head: str, *, token: str | None) -> str:
    """What becomes of a driver with this token."""
    # Ray would take another address for the loopback one
    local = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    environment = {**os.environ, **local, "RAY_gcs_rpc_server_reconnect_timeout_s": "5"}
    if token is not None:
        environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    driver = subprocess.run(
        [sys.executable, "-c", _JOIN, head],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=120,
        check=False,
    )
    return driver.stdout.decode().split()[0]

"""The tokens of a job, searched for in everything that its processes show and leave behind."""

import base64
from pathlib import Path

import pytest
from local_job import local_engines, start_trainer
from pod_builder import run_config

from grpo_api.contract.endpoints import ADMIN_TOKEN_FILE, DATA_TOKEN_FILE
from grpo_api.contract.run_config import RunConfig

pytestmark = pytest.mark.engine


def short_job() -> RunConfig:
    return run_config(
        rewards=[{"name": "copy", "builtin": "char_accuracy"}],
        algorithm={"steps": 6, "promptsPerStep": 4, "groupSize": 4},
        sampling={"maxTokens": 4},
        trainer={"processesPerNode": 1},
        engine={"maxModelLen": 64, "kvCacheMemory": "64Mi"},
        rollout={"replicas": 1},
        checkpoint={"everySteps": 2},
    )


def spellings(token: str) -> set[bytes]:
    return {token.encode(), base64.b64encode(token.encode()).rstrip(b"=")[:-1]}


def shown_by_processes(folder: Path) -> dict[str, bytes]:
    """Command line and environment of every process that was started for the job in `folder`."""
    shown = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended meanwhile
        if str(folder).encode() in environment:
            shown[f"{process.name} environ"] = environment
            shown[f"{process.name} {command[:120]!r}"] = command
    return shown


def left_behind(folder: Path) -> dict[str, bytes]:
    """Every file of the job but the tokens' own: logs, termination messages, caches, checkpoints, reports."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in files
        if path.name not in (DATA_TOKEN_FILE, ADMIN_TOKEN_FILE)
    }


def test_no_token_is_in_a_log_a_process_list_a_checkpoint_or_any_other_file(tmp_path: Path) -> None:
    run = short_job()
    with local_engines(tmp_path, run, count=1) as engines:
        trainer = start_trainer(tmp_path, run, engines)
        trainer.wait_until(lambda progress: progress.step >= 1)
        shown = shown_by_processes(tmp_path)
        code, message = trainer.end()
    assert code == 0, message
    left = left_behind(tmp_path)

    # the search looked where there was something to find
    commands = " ".join(shown)
    assert "trainer" in commands and "rollout" in commands and "ranks" in commands
    assert any(name.startswith("output/checkpoints") for name in left), sorted(left)
    assert {"output/metrics.jsonl", "engine-0.log", "log-1-0"} <= left.keys()
    tokens = [(tmp_path / name).read_text().strip() for name in (DATA_TOKEN_FILE, ADMIN_TOKEN_FILE)]
    needles = set().union(*(spellings(token) for token in tokens))
    assert len(needles) == 4
    found = [where for where, text in (shown | left).items() if any(needle in text for needle in needles)]
    assert found == []

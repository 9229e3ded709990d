"""What a local process is given when it starts, and what is read of it when it has ended."""

from pathlib import Path
from typing import Any

import pytest

from grpo_api.contract.environment import Env
from grpo_api.contract.progress import TerminationMessage
from grpo_runtime.local.context import LocalContext
from grpo_runtime.local.environments import inherited
from grpo_runtime.local.process_table import ProcessExit, ProcessOutcome, outcome_of
from grpo_runtime.local.workspace import Workspace
from grpo_runtime.supervisor.fork_server import RENDEZVOUS_VARIABLES


def test_variables_of_a_pod_or_of_other_ranks_are_not_inherited() -> None:
    """`grpo-runtime run` may be started in a pod or by torchrun."""
    shell = {"PATH": "/bin", "HF_HOME": "/hub", **dict.fromkeys((*Env, *RENDEZVOUS_VARIABLES), "foreign")}
    assert {"GRPO_ATTEMPT", "GRPO_ROLE", "RANK", "WORLD_SIZE", "MASTER_ADDR"} <= shell.keys()
    assert inherited(shell) == {"PATH": "/bin", "HF_HOME": "/hub"}


@pytest.fixture
def context(tmp_path: Path) -> LocalContext:
    names = ("run_config", "processes", "programs", "environment", "gpus", "say")
    others: dict[str, Any] = dict.fromkeys(names)
    workspace = Workspace(tmp_path)
    workspace.own.mkdir(parents=True)
    return LocalContext(workspace=workspace, **others)


def test_a_process_that_starts_again_finds_an_empty_cache_and_no_earlier_termination_message(
    context: LocalContext,
) -> None:
    for _ in range(2):
        cache, log = context.fresh_cache("trainer-0"), context.fresh_termination_log("trainer-0")
        assert (list(cache.iterdir()), log.exists()) == ([], False)
        (cache / "run").mkdir()
        (cache / "run" / "progress.json").write_text("{}")
        log.write_text("{}")
    assert context.workspace.cache("trainer-0") == cache


def written(path: Path, *, exit_code: int) -> Path:
    message = TerminationMessage(reason="UserError", message="no column prompt", exit_code=exit_code, rank=1)
    path.write_text(message.model_dump_json(by_alias=True))
    return path


def test_a_termination_message_about_the_exit_it_had_is_the_outcome(tmp_path: Path) -> None:
    outcome = outcome_of(
        ProcessExit("trainer-0", 40), termination_log=written(tmp_path / "log", exit_code=40)
    )
    assert outcome == ProcessOutcome(
        "trainer-0",
        TerminationMessage(reason="UserError", message="no column prompt", exit_code=40, rank=1),
    )


def test_a_termination_message_about_another_exit_than_it_had_is_ignored(tmp_path: Path) -> None:
    killed = ProcessExit("trainer-0", 137, signal_number=9)
    found = outcome_of(killed, termination_log=written(tmp_path / "log", exit_code=40)).termination
    assert (found.exit_code, found.reason, found.rank) == (137, "Killed", None)
    assert found.message == "trainer-0 was killed by SIGKILL; mostly this means out of memory"


@pytest.mark.parametrize("text", [None, "", '{"schemaVersion": 1, "reason": "Us'])
def test_without_a_whole_termination_message_the_exit_code_is_all_there_is(
    tmp_path: Path, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "log").write_text(text)
    found = outcome_of(ProcessExit("trainer-0", 1), termination_log=tmp_path / "log").termination
    assert (found.exit_code, found.reason) == (1, "UnexpectedError")
    assert "ended with exit code 1" in found.message

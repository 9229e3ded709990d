"""When the engines of a local job start again, and which of their errors count, over processes that are a
fake."""

from pathlib import Path
from typing import Any, cast

import pytest
from local_command import job_object

from grpo_api.resolve import resolve
from grpo_api.v1alpha1.job import parse_job
from grpo_runtime.local.context import LocalContext, Programs
from grpo_runtime.local.engine_processes import EngineProcesses
from grpo_runtime.local.gpus import GpuShares
from grpo_runtime.local.process_table import ProcessExit
from grpo_runtime.local.workspace import Workspace


class FakeProcesses:
    """Notes what is started."""

    def __init__(self) -> None:
        self.started: list[tuple[str, str]] = []
        """Names, each with the port it was given."""

    def start(self, name: str, command: list[str], environment: object, *, log: Path) -> None:
        self.started.append((name, command[command.index("--port") + 1]))


@pytest.fixture
def processes() -> FakeProcesses:
    return FakeProcesses()


@pytest.fixture
def engines(tmp_path: Path, processes: FakeProcesses) -> EngineProcesses:
    """Two that have started at 0."""
    job = parse_job(job_object(rollout={"replicas": 2}))
    workspace = Workspace(tmp_path)
    workspace.own.mkdir(parents=True)
    workspace.run_config.write_text("{}")
    context = LocalContext(
        run_config=resolve(job, is_one_machine=True),
        workspace=workspace,
        processes=cast(Any, processes),
        programs=Programs(),
        environment={},
        gpus=GpuShares.of(job, ()),
        say=lambda sentence: None,
    )
    started = EngineProcesses(context)
    started.start(now=0.0)
    return started


def end(engines: EngineProcesses, name: str, *, exit_code: int, now: float) -> None:
    engines.ended(ProcessExit(name, exit_code), now=now)


def names_of(engines: EngineProcesses, *, since: float, num_current: int = 0) -> list[str]:
    return [outcome.name for outcome in engines.user_errors(since=since, num_current=num_current)]


def test_only_an_error_of_this_attempt_counts(engines: EngineProcesses) -> None:
    end(engines, "rollout-0", exit_code=40, now=10.0)
    end(engines, "rollout-1", exit_code=40, now=20.0)
    assert names_of(engines, since=10.0) == ["rollout-0", "rollout-1"]
    assert names_of(engines, since=10.1) == ["rollout-1"]
    assert names_of(engines, since=20.1) == []


def test_an_error_counts_until_all_engines_work_or_this_one_ends_otherwise(engines: EngineProcesses) -> None:
    end(engines, "rollout-0", exit_code=40, now=10.0)
    end(engines, "rollout-1", exit_code=40, now=10.0)
    assert names_of(engines, since=0.0, num_current=1) == ["rollout-0", "rollout-1"]
    end(engines, "rollout-0", exit_code=1, now=20.0)
    assert names_of(engines, since=0.0) == ["rollout-1"]
    assert names_of(engines, since=0.0, num_current=2) == []
    assert names_of(engines, since=0.0, num_current=1) == []


def test_an_engine_starts_again_on_its_port_once_it_is_due(
    engines: EngineProcesses, processes: FakeProcesses
) -> None:
    first = dict(processes.started)
    assert first == dict(zip(("rollout-0", "rollout-1"), map(str, engines.ports), strict=True))
    assert engines.wakes_at is None
    for now in (1.0, 2.0):
        end(engines, "rollout-1", exit_code=1, now=now)
        engines.tick(now=now)
    due_at = engines.wakes_at
    assert due_at is not None and due_at > 2.0
    engines.tick(now=due_at - 0.1)
    assert processes.started[2:] == [("rollout-1", first["rollout-1"])]
    engines.tick(now=due_at)
    assert processes.started[2:] == [("rollout-1", first["rollout-1"])] * 2
    assert engines.wakes_at is None

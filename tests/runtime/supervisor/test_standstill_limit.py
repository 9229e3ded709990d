"""When a supervisor ends an attempt that nobody asks for its progress."""

from pathlib import Path

import pytest
from pod_builder import run_config, trainer_environment

from grpo_api.contract.environment import Env
from grpo_api.contract.exit_codes import ExitCode, exit_policy
from grpo_api.contract.progress import Progress, TrainerState
from grpo_api.contract.reasons import Reason
from grpo_runtime.settings import TrainerSettings, read_trainer_settings
from grpo_runtime.supervisor.standstill import HEARD_SECONDS, StallLimit

STALL, STARTUP = 300, 900


def settings(folder: Path, **more: str) -> TrainerSettings:
    limits = {Env.STALL_TIMEOUT_SECONDS.value: str(STALL), Env.STARTUP_DEADLINE_SECONDS.value: str(STARTUP)}
    return read_trainer_settings({**trainer_environment(folder, run_config()), **limits, **more})


def report(heartbeat: int = 1, *, state: TrainerState = TrainerState.TRAINING, message: str = "") -> Progress:
    return Progress(
        job_uid="uid", attempt=1, total_steps=9, heartbeat=heartbeat, state=state, message=message
    )


@pytest.fixture
def limit(tmp_path: Path) -> StallLimit:
    return StallLimit(settings(tmp_path), now=0.0)


def test_a_hang_that_nobody_asks_about_ends_after_the_timeout(limit: StallLimit) -> None:
    told = report(message="rank 1 is stopped")
    assert limit.exceeded(told, asked_at=None, now=10.0) is None
    assert limit.exceeded(told, asked_at=None, now=10.0 + STALL - 1) is None
    found = limit.exceeded(told, asked_at=None, now=10.0 + STALL)
    assert found is not None
    assert (found.reason, found.exit_code) == (Reason.TRAINER_STALLED, ExitCode.TRANSIENT)
    assert exit_policy(found.exit_code).is_retried and exit_policy(found.exit_code).is_counted
    assert found.message.startswith(f"no sign of life for {STALL} s (stallTimeoutSeconds is {STALL})")
    assert found.message.endswith(": rank 1 is stopped")


def test_every_sign_of_life_begins_the_time_again(limit: StallLimit) -> None:
    for beat in range(10):
        assert limit.exceeded(report(beat), asked_at=None, now=beat * (STALL - 1.0)) is None


def test_who_asks_judges(limit: StallLimit) -> None:
    limit.exceeded(report(), asked_at=None, now=0.0)
    late = 20.0 * STALL
    assert limit.exceeded(report(), asked_at=late - HEARD_SECONDS + 1, now=late) is None
    assert limit.exceeded(report(), asked_at=late - HEARD_SECONDS, now=late) is not None


def test_before_its_first_step_a_trainer_has_as_long_as_it_may_take_to_start(limit: StallLimit) -> None:
    starting = report(0, state=TrainerState.STARTING)
    assert limit.exceeded(starting, asked_at=None, now=STARTUP - 1.0) is None
    assert limit.exceeded(starting, asked_at=None, now=2.0 * STARTUP - 2) is None
    found = limit.exceeded(starting, asked_at=None, now=2.0 * STARTUP - 1)
    assert found is not None and f"startupDeadlineSeconds is {STARTUP}" in found.message
    assert found.message.endswith(": Starting")


def test_waiting_for_engines_is_a_sign_of_life(limit: StallLimit) -> None:
    for beat in range(10):
        waiting = report(beat, state=TrainerState.WAITING_FOR_ROLLOUT)
        assert limit.exceeded(waiting, asked_at=None, now=beat * (STARTUP - 1.0)) is None


def test_a_pod_without_rank_0_and_a_run_on_the_own_machine_are_not_limited(tmp_path: Path) -> None:
    late = 1e9
    assert StallLimit(settings(tmp_path), now=0.0).exceeded(None, asked_at=None, now=late) is None
    local = read_trainer_settings(trainer_environment(tmp_path, run_config()))
    assert StallLimit(local, now=0.0).exceeded(report(), asked_at=None, now=late) is None

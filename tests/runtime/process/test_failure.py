import errno
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.reasons import Reason
from grpo_runtime.errors import (
    CheckpointCorruptError,
    HubUnreachableError,
    PeerLostError,
    SupersededError,
    UserError,
    VolumeFullError,
)
from grpo_runtime.process.failure import describe_failure, explain_abort, read_failure, write_failure
from grpo_runtime.rollouts.interface import EngineGoneError, RolloutLostError


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (UserError("spec"), ExitCode.USER_ERROR, "UserError"),
        (CheckpointCorruptError("none is whole"), ExitCode.CHECKPOINT_CORRUPT, "CheckpointCorrupt"),
        (RolloutLostError("no engine"), ExitCode.ROLLOUT_LOST, "RolloutLost"),
        (EngineGoneError("engine-0"), ExitCode.TRANSIENT, "TransientError"),
        (SupersededError("attempt 2 has begun"), ExitCode.TRANSIENT, "TransientError"),
        (VolumeFullError("the volume of /output is full"), ExitCode.TRANSIENT, "VolumeFull"),
        (OSError(errno.ENOSPC, "No space left on device", "/cache/x"), ExitCode.TRANSIENT, "VolumeFull"),
        (ConnectionResetError("reset"), ExitCode.TRANSIENT, "TransientError"),
        (PeerLostError("rank gone"), ExitCode.TRANSIENT, Reason.PEER_LOST),
        (KeyError("x"), ExitCode.UNEXPECTED, "UnexpectedError"),
    ],
)
def test_every_kind_of_error_has_its_exit_code(error: Exception, code: int, reason: str) -> None:
    failure = describe_failure(error)
    assert (failure.exit_code, failure.reason) == (code, reason)


@pytest.mark.parametrize(
    ("error", "is_effect"),
    [
        (PeerLostError("rank 1 is gone"), True),
        (ConnectionResetError("reset"), True),
        (RuntimeError("gloo: Connection closed by peer [10.0.0.2]:5341"), True),
        (RuntimeError("[Rank 0] Broken pipe"), True),
        (HubUnreachableError("the Hub cannot be reached: connection refused"), False),
        (RuntimeError("the shapes differ"), False),
        (TimeoutError("no answer"), False),
    ],
    ids=str,
)
def test_that_a_peer_is_gone_is_an_effect_of_what_ended_that_one(error: Exception, is_effect: bool) -> None:
    assert describe_failure(error).is_effect is is_effect


def test_an_unexpected_error_says_what_and_where() -> None:
    try:
        {}["missing"]
    except KeyError as error:
        message = describe_failure(error).message
    assert re.fullmatch(r"KeyError in .*test_failure\.test_an_unexpected_error_\w+:\d+: 'missing'", message)


def test_what_a_rank_writes_is_what_the_supervisor_reads(tmp_path: Path) -> None:
    error = UserError("set groupSize to 4")
    assert write_failure(tmp_path, error, local_rank=1) == ExitCode.USER_ERROR
    assert read_failure(tmp_path, local_rank=1) == describe_failure(error)
    assert read_failure(tmp_path, local_rank=0) is None


def test_an_abort_means_what_the_rank_said_before_unless_it_wrote_another_failure(tmp_path: Path) -> None:
    lost, own = PeerLostError("NCCL ended the process"), UserError("set groupSize to 4")
    explain_abort(tmp_path, lost, local_rank=1)
    assert read_failure(tmp_path, local_rank=1) is None
    assert read_failure(tmp_path, local_rank=1, signal_number=signal.SIGKILL) is None
    assert read_failure(tmp_path, local_rank=1, signal_number=signal.SIGABRT) == describe_failure(lost)
    assert read_failure(tmp_path, local_rank=0, signal_number=signal.SIGABRT) is None
    write_failure(tmp_path, own, local_rank=1)
    assert read_failure(tmp_path, local_rank=1, signal_number=signal.SIGABRT) == describe_failure(own)


STUCK_RANK = """
import threading
from pathlib import Path
from grpo_runtime.trainer.rank import run_rank
threading.Thread(target=threading.Event().wait).start()
run_rank({"RANK": "0", "LOCAL_RANK": "0"}, run_dir=Path("gone"))
"""


def test_a_rank_ends_with_its_code_though_a_thread_is_stuck_and_its_failure_cannot_be_written(
    tmp_path: Path,
) -> None:
    # it was given no RunConfig, and the run directory does not exist
    ended = subprocess.run(
        [sys.executable, "-c", STUCK_RANK],
        cwd=tmp_path,
        timeout=120,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == ExitCode.USER_ERROR
    assert "the cause of this failure cannot be written for the supervisor" in ended.stderr


def test_only_an_unexpected_error_may_end_a_job_that_repeats_it(tmp_path: Path) -> None:
    for error, has_signature in ((TypeError("x"), True), (OSError("x"), False), (UserError("x"), False)):
        write_failure(tmp_path, error, local_rank=0, step=4)
        failure = read_failure(tmp_path, local_rank=0)
        assert failure is not None and (failure.error is not None) == has_signature

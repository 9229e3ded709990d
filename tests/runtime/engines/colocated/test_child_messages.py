"""What goes between a rank and its engine's process keeps its meaning, to the last bit."""

import math
from multiprocessing import Pipe

import pytest

from grpo_runtime.engines.colocated.child_messages import Message, decode_error, encode_error, receive, send
from grpo_runtime.engines.colocated.engine_process import VISIBLE_DEVICES, child_environment
from grpo_runtime.errors import UserError
from grpo_runtime.rollouts.interface import EngineError, EngineTimeoutError
from grpo_runtime.rollouts.wire import logprobs_frame
from grpo_runtime.weight_sync.interface import GroupBrokenError, WeightSyncError


def test_a_message_keeps_every_bit() -> None:
    ours, theirs = Pipe()
    frames = [logprobs_frame([-0.1, math.pi / -3, -math.inf]), logprobs_frame([])]
    with ours, theirs:
        send(ours, {"finished": 7, "share": 0.1}, frames)
        send(ours, {})
        assert receive(theirs) == Message({"finished": 7, "share": 0.1}, frames)
        assert receive(theirs) == Message({}, [])


def test_who_closes_the_pipe_in_the_middle_of_a_message_ends_the_reading() -> None:
    ours, theirs = Pipe()
    with theirs:
        with ours:
            send(ours, {"num_steps": 3})
        assert receive(theirs) == Message({"num_steps": 3}, [])
        with pytest.raises(EOFError):
            receive(theirs)


@pytest.mark.parametrize(
    ("error", "arrives_as", "text"),
    [
        (UserError("engine.args: --x"), UserError, "engine.args: --x"),
        (WeightSyncError("digest"), WeightSyncError, "digest"),
        (GroupBrokenError("gone"), WeightSyncError, f"{GroupBrokenError.MARK}: gone"),
        (EngineTimeoutError("late"), EngineError, "late"),
        (MemoryError("out"), EngineError, "MemoryError: out"),
    ],
)
def test_an_error_arrives_as_what_it_is_to_the_rank(
    error: Exception, arrives_as: type[Exception], text: str
) -> None:
    found = decode_error(encode_error(error))
    assert (type(found), str(found)) == (arrives_as, text)


@pytest.mark.parametrize(
    ("visible", "device_index", "seen"),
    [(None, 2, "2"), ("4,5,6", 1, "5"), ("GPU-a,GPU-b", 0, "GPU-a"), ("3", None, "3")],
)
def test_an_engine_sees_the_gpu_of_its_rank_only(
    visible: str | None, device_index: int | None, seen: str
) -> None:
    given = {} if visible is None else {VISIBLE_DEVICES: visible}
    made = child_environment(given, of_engine={}, device_index=device_index)
    assert made[VISIBLE_DEVICES] == seen


def test_an_engine_knows_nothing_of_where_the_ranks_meet() -> None:
    of_ranks = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1234"}
    given = {**of_ranks, "HOME": "/root", "OMP_NUM_THREADS": "8"}
    made = child_environment(given, of_engine={"OMP_NUM_THREADS": "1"}, device_index=None)
    assert made == {"HOME": "/root", "OMP_NUM_THREADS": "1"}

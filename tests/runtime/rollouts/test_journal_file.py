"""The files of the rollout journal: what was written whole is read, to the last bit, and nothing else."""

import errno
import json
import math
import os
import struct
import threading
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from polling import wait_until

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.data.prompt import Prompt
from grpo_runtime.errors import VolumeFullError
from grpo_runtime.process.background import in_thread
from grpo_runtime.rewards.chunk import Column
from grpo_runtime.rewards.types import FailureKind, RewardFailure
from grpo_runtime.rollouts.frames import Frame, decode_frames, encode_frame
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import (
    AgentCalls,
    AgentTurn,
    GenerateRequest,
    GivenUp,
    Rollout,
    VersionSpan,
)
from grpo_runtime.rollouts.journal.reader import file_of, read_step
from grpo_runtime.rollouts.journal.records import Begun, Composed, Generated, Scored, Trained, decode_record
from grpo_runtime.rollouts.journal.writer import JournalWriter

JOB = "job-uid"
LOGPROBS = tuple(array("f", [-0.1, -0.0, -1e-45, -3.4e38, math.nextafter(-1, 0)]))
REQUEST = GenerateRequest(prompt_ids=(7, 8), seed=2**62 + 5)
ROLLOUT = Rollout(
    prompt_ids=REQUEST.prompt_ids,
    completion_ids=(1, 0, 151_935, 3, 4),
    rollout_logprobs=LOGPROBS,
    versions=(VersionSpan(PolicyVersion(2, 3), 0, 2), VersionSpan(PolicyVersion(2, 4), 2, 5)),
    is_terminated=False,
    engine="rollout-0",
)


def begun(attempt: int, *, step: int = 4, is_fresh: bool = False, job: str = JOB) -> Frame:
    return Begun(job_uid=job, attempt=attempt, step=step, is_fresh=is_fresh).frame()


def generated(sample: int, *, token: int = 5) -> Frame:
    completion = Rollout((), (token,), (-1.0,), (), True, "fake")
    record = Generated(
        group=0, sample=sample, seed=sample, prompt_checksum=1, sampling=1, completion=completion
    )
    return record.frame()


def write(folder: Path, attempt: int, *frames: Frame, more: bytes = b"") -> Path:
    path = file_of(folder, step=4, attempt=attempt)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(map(encode_frame, frames)) + more)
    return path


def tokens(folder: Path, *, attempt: int = 9) -> dict[int, int]:
    """The first token of each sample that counts."""
    found = read_step(folder, step=4, attempt=attempt, job_uid=JOB)
    return {
        sample: record.completion.completion_ids[0]
        for (_, sample), record in found.generated.items()
        if isinstance(record.completion, Rollout)
    }


def group(*rollouts: Rollout, request: GenerateRequest = REQUEST, number: int = 1) -> Group:
    """Sampled, and not scored."""
    prompt = Prompt(index=0, content="a=", columns={})
    requests = [request] * len(rollouts)
    return Group(step=4, number=number, prompt=prompt, requests=requests, rollouts=list(rollouts))


def scored(*rollouts: Rollout, columns: tuple[Column, ...]) -> Group:
    made = group(*rollouts)
    made.columns = columns
    return made


@pytest.mark.parametrize("mask", [None, (True, False, False, True, True)])
def test_a_sample_comes_back_to_the_last_bit(mask: tuple[bool, ...] | None) -> None:
    rollout = replace(ROLLOUT, loss_mask=mask)
    record = Generated.of_group(group(ROLLOUT, ROLLOUT, rollout), 2, sampling=9)
    (frame,), damage = decode_frames(encode_frame(record.frame()))
    found = decode_record(frame)
    assert damage is None and isinstance(found, Generated)
    assert (found.group, found.sample) == (1, 2)
    assert found == record and found.answers(REQUEST, sampling=9)
    assert found.rollout_of(REQUEST) == rollout
    assert isinstance(found.completion, Rollout)
    bits = [struct.pack("<f", logprob) for logprob in found.completion.rollout_logprobs]
    assert bits == [struct.pack("<f", logprob) for logprob in LOGPROBS]


def episode(**changes: Any) -> Rollout:
    """Of three sequences. `changes` are made to the last."""
    second = Rollout((7, 8, 9), (5, 6), LOGPROBS[1:3], (), True, "rollout-1", loss_mask=(True, False))
    spans = (VersionSpan(PolicyVersion(2, 4), 0, 1),)
    third = replace(Rollout((), (1,), LOGPROBS[:1], spans, False, "rollout-0"), **changes)
    return replace(ROLLOUT, branches=(second, third))


def test_every_sequence_of_an_episode_comes_back_with_its_own_prompt() -> None:
    record = Generated.of_group(group(episode()), 0, sampling=9)
    (frame,), _ = decode_frames(encode_frame(record.frame()))
    found = decode_record(frame)
    assert isinstance(found, Generated)
    assert found == record and found.answers(REQUEST, sampling=9)
    assert found.rollout_of(REQUEST).sequences == (ROLLOUT, *episode().branches)


@pytest.mark.parametrize("returned", [None, 0.0, -1.5])
def test_an_episode_keeps_the_prompt_that_its_agent_gave_it_its_calls_their_order_and_what_it_returned(
    returned: float | None,
) -> None:
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    trajectory = None if returned is None else {"chats": [chat], "state": {"board": [1]}}
    turns = [
        AgentTurn(sequence=0, start=0, end=1, seconds=1.25, waited_seconds=0.5, chat=0, messages=(0, 1)),
        AgentTurn(sequence=2, start=0, end=1, seconds=0.25, waited_seconds=0.0),
        AgentTurn(sequence=1, start=0, end=1, seconds=0.25, waited_seconds=0.0),
    ]
    calls = AgentCalls(environment="game", turns=turns, overridden={"temperature": 2}, failures={"tool": 1})
    rollout = replace(episode(), prompt_ids=(8, 8), returned=returned, trajectory=trajectory, calls=calls)
    (frame,), _ = decode_frames(encode_frame(Generated.of_group(group(rollout), 0, sampling=9).frame()))
    found = decode_record(frame)
    assert isinstance(found, Generated)
    assert found.answers(REQUEST, sampling=9) and found.rollout_of(REQUEST) == rollout
    assert found.rollout_of(REQUEST).last == episode().branches[0]


def test_a_sample_that_was_given_up_comes_back_with_what_failed() -> None:
    made = group(ROLLOUT, ROLLOUT)
    made.rollouts[1] = GivenUp("the tool is away. It was tried 3 times")
    record = Generated.of_group(made, 1, sampling=9)
    (frame,), _ = decode_frames(encode_frame(record.frame()))
    found = decode_record(frame)
    assert isinstance(found, Generated) and found == record
    assert found.answers(REQUEST, sampling=9) and found.rollout_of(REQUEST) == made.rollouts[1]


def test_an_episode_of_which_a_sequence_is_lost_is_not_read() -> None:
    frame = Generated.of_group(group(episode()), 0, sampling=9).frame()
    arrays = {name: values for name, values in frame.arrays.items() if name != "branches/1/token_ids"}
    with pytest.raises(KeyError):
        decode_record(Frame(frame.header, arrays))


@pytest.mark.parametrize("changes", [{"completion_ids": (2,)}, {"prompt_ids": (1,)}])
def test_rewards_are_of_all_sequences_of_an_episode(changes: dict[str, Any]) -> None:
    found = Scored.of_group(scored(episode(), columns=(Column(values=[1.0]),)), names=("a",))
    assert found.is_of(group(episode()), names=("a",))
    assert not found.is_of(group(episode(**changes)), names=("a",))
    assert not found.is_of(group(ROLLOUT), names=("a",))


@pytest.mark.parametrize(
    "changes", [{"completion_ids": (2,)}, {"prompt_ids": (1,)}, {"rollout_logprobs": LOGPROBS[1:2]}]
)
def test_what_a_step_was_trained_on_is_told_by_all_sequences_of_an_episode(changes: dict[str, Any]) -> None:
    columns = (Column(values=[1.0]),)
    trained = [scored(episode(), columns=columns)]
    found = Composed.of_step(trained=trained, filtered=(), failed=(), dropped=(), num_drawn=1)
    assert found.is_of([scored(episode(), columns=columns)])
    assert not found.is_of([scored(episode(**changes), columns=columns)])


@pytest.mark.parametrize(
    ("asked", "sampling"),
    [
        (GenerateRequest((7, 8), seed=1), 9),
        (GenerateRequest((7, 9), seed=REQUEST.seed), 9),
        (REQUEST, 8),
    ],
    ids=["seed", "prompt", "sampling"],
)
def test_a_sample_answers_no_request_but_its_own(asked: GenerateRequest, sampling: int) -> None:
    record = Generated.of_group(group(ROLLOUT), 0, sampling=9)
    assert not record.answers(asked, sampling=sampling)


def test_no_reward_is_told_apart_from_every_number_and_rewards_keep_every_bit() -> None:
    failure = RewardFailure(
        name="b", kind=FailureKind.LOST, reason="secret", num_samples=2, sample={"a": "b"}
    )
    columns = (
        Column(values=[1 / 3, math.nan], logged={"mine": [math.inf, math.nan], "more": [1 / 3]}),
        Column(values=[None, -0.0], failures=(failure,), logged={"mine": [2.0]}),
    )
    made = scored(ROLLOUT, ROLLOUT, columns=columns)
    (frame,), _ = decode_frames(encode_frame(Scored.of_group(made, names=("a", "b")).frame()))
    found = decode_record(frame)
    assert isinstance(found, Scored)
    one, two = found.columns
    (first, nan), (none, zero) = one.values, two.values
    assert (first, none) == (1 / 3, None)
    assert nan is not None and math.isnan(nan)
    assert zero is not None and math.copysign(1, zero) == -1
    assert one.logged["mine"][0] == math.inf and math.isnan(one.logged["mine"][1])
    assert (one.logged["more"], two.logged) == ([1 / 3], {"mine": [2.0]})
    # what a function said of a completion is in no file
    [failed] = two.failures
    assert (failed.name, failed.kind, failed.num_samples) == ("b", FailureKind.LOST, 2)
    assert one.failures == () and b"secret" not in encode_frame(frame)


def test_rewards_are_those_of_exactly_these_completions_by_these_functions() -> None:
    columns = (Column(values=[1.0, 2.0]), Column(values=[1.0, 2.0]))
    found = Scored.of_group(scored(ROLLOUT, ROLLOUT, columns=columns), names=("a", "b"))
    assert found.is_of(group(ROLLOUT, ROLLOUT), names=("a", "b"))
    other = Rollout((1,), (2,), (-1.0,), (), True, "fake")
    assert not found.is_of(group(ROLLOUT, other), names=("a", "b"))
    assert not found.is_of(group(ROLLOUT, ROLLOUT), names=("a", "c"))
    # another prompt may have the same completions
    assert not found.is_of(group(ROLLOUT, ROLLOUT, number=2), names=("a", "b"))


def test_wherever_a_write_is_cut_off_the_records_before_it_are_read() -> None:
    parts = [encode_frame(frame) for frame in (begun(1), generated(0), generated(1))]
    whole = b"".join(parts)
    ends = [len(parts[0]), len(parts[0] + parts[1]), len(whole)]
    for length in range(len(whole)):
        frames, damage = decode_frames(whole[:length])
        assert len(frames) == sum(end <= length for end in ends)
        if length in (0, *ends):
            assert damage is None
        else:
            assert damage is not None and damage.is_tail
            assert damage.offset + damage.num_bytes == length


def test_no_bit_that_turns_around_gives_a_record_that_was_not_written() -> None:
    frames = [begun(1), generated(0), generated(1)]
    written = [decode_record(frame) for frame in frames]
    whole = b"".join(map(encode_frame, frames))
    first = len(encode_frame(frames[0]))
    for place in range(len(whole)):
        hurt = bytearray(whole)
        hurt[place] ^= 1 << (place % 8)
        found, damage = decode_frames(bytes(hurt))
        assert [decode_record(frame) for frame in found] == written[: len(found)]
        assert damage is not None and len(found) < len(written)
        if place < first:
            assert not damage.is_tail, "whole records follow"


def test_a_damaged_record_in_the_middle_ends_the_file_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path, 1, begun(1), generated(0), generated(1), generated(2))
    hurt = bytearray(path.read_bytes())
    hurt[len(encode_frame(begun(1)) + encode_frame(generated(0))) + 20] ^= 1
    path.write_bytes(hurt)
    assert tokens(tmp_path) == {0: 5}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "is damaged at byte" in caplog.text


def test_a_torn_tail_is_said_and_is_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    write(tmp_path, 1, begun(1), generated(0), more=encode_frame(generated(1))[:-1])
    assert tokens(tmp_path) == {0: 5}
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "was cut off" in caplog.text


def test_the_highest_attempt_that_has_a_sample_counts_and_lower_ones_fill_up(tmp_path: Path) -> None:
    write(tmp_path, 1, begun(1), generated(0, token=10), generated(1, token=11))
    write(tmp_path, 2, begun(2), generated(1, token=21), generated(2, token=22))
    assert tokens(tmp_path) == {0: 10, 1: 21, 2: 22}
    # an attempt that was fenced off reads nothing of a later one
    assert tokens(tmp_path, attempt=1) == {0: 10, 1: 11}


def test_what_a_lower_attempt_writes_late_replaces_nothing(tmp_path: Path) -> None:
    write(tmp_path, 2, begun(2), generated(0, token=20))
    write(tmp_path, 1, begun(1), generated(0, token=10))
    assert tokens(tmp_path) == {0: 20}


def test_nothing_of_lower_attempts_counts_in_a_step_that_was_begun_afresh(tmp_path: Path) -> None:
    write(tmp_path, 1, begun(1), generated(0), generated(1))
    write(tmp_path, 2, begun(2, is_fresh=True), generated(1, token=21))
    assert tokens(tmp_path) == {1: 21}


@pytest.mark.parametrize("first", [begun(1, job="another"), begun(1, step=5), generated(3)])
def test_a_file_of_another_job_or_step_is_left_out(
    tmp_path: Path, first: Frame, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, 1, first, generated(0))
    assert tokens(tmp_path) == {}
    assert "left out" in caplog.text


def test_a_format_that_this_runtime_does_not_know_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    frame = begun(1)
    write(tmp_path, 1, Frame({**frame.header, "format": 2}, {}), generated(0))
    assert tokens(tmp_path) == {}
    assert "the format is 2, not 1" in caplog.text


def test_the_digests_of_a_step_are_kept_by_how_the_weights_were_spread(tmp_path: Path) -> None:
    one, two = Trained(digest="a", layout="DDP over 1"), Trained(digest="b", layout="DDP over 2")
    write(tmp_path, 1, begun(1), one.frame())
    write(tmp_path, 2, begun(2), two.frame())
    found = read_step(tmp_path, step=4, attempt=9, job_uid=JOB)
    assert found.trained == {"DDP over 1": "a", "DDP over 2": "b"}


def test_a_file_is_json_and_raw_numbers(tmp_path: Path) -> None:
    content = encode_frame(generated(0))
    length = struct.unpack_from("<I", content, 4)[0]
    header = json.loads(content[16 : 16 + length])
    assert header["kind"] == "generated" and header["finish_reason"] == "stop"
    assert content[16 + length :] == struct.pack("<if", 5, -1.0)


class SlowDisk:
    """Its first sync waits to be let through; all are counted. `synced` has the size of each file, by its
    inode, at its last sync."""

    def __init__(self) -> None:
        self.num_syncs = 0
        self.synced: dict[int, int] = {}
        self.begun, self.may_go_on = threading.Event(), threading.Event()

    def __call__(self, descriptor: int) -> None:
        self.num_syncs += 1
        self.begun.set()
        assert self.may_go_on.wait(10)
        os.fsync(descriptor)
        status = os.fstat(descriptor)
        self.synced[status.st_ino] = status.st_size


def busy_disk(folder: Path) -> tuple[SlowDisk, JournalWriter, Path]:
    """A disk whose first sync, of the beginning of the file at the path, waits to be let through."""
    disk = SlowDisk()
    writer = JournalWriter(folder, sync=disk)
    path = file_of(folder, step=4, attempt=1)
    writer.put(path, begun(1))
    assert disk.begun.wait(10)
    return disk, writer, path


def test_records_that_come_while_the_disk_is_busy_are_synced_together(tmp_path: Path) -> None:
    disk, writer, path = busy_disk(tmp_path)
    for sample in range(100):
        writer.put(path, generated(sample))
    disk.may_go_on.set()
    writer.wait()
    assert disk.num_syncs == 2
    assert len(tokens(tmp_path)) == 100
    writer.close()


def test_every_file_of_several_that_came_together_is_synced(tmp_path: Path) -> None:
    disk, writer, _ = busy_disk(tmp_path)
    paths = [file_of(tmp_path, step=step, attempt=1) for step in (4, 5, 6)]
    for path, step in zip(paths[1:], (5, 6), strict=True):
        writer.put(path, begun(1, step=step))
    disk.may_go_on.set()
    writer.wait()
    assert disk.synced == {path.stat().st_ino: path.stat().st_size for path in paths}
    writer.close()


def test_a_record_that_comes_behind_the_end_is_written_and_the_writer_ends(tmp_path: Path) -> None:
    disk, writer, path = busy_disk(tmp_path)
    closing = threading.Thread(target=writer.close, daemon=True)
    closing.start()
    wait_until(lambda: writer._queue.qsize() == 1, "the end is queued")
    writer.put(path, generated(0))
    disk.may_go_on.set()
    closing.join(10)
    assert not closing.is_alive()
    assert tokens(tmp_path) == {0: 5}


@pytest.mark.parametrize("is_late", [False, True])
def test_a_run_that_fails_writes_the_records_that_have_come_for_so_long(
    tmp_path: Path, is_late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    disk, writer, path = busy_disk(tmp_path)
    for sample in range(100):
        writer.put(path, generated(sample))
    if is_late:
        writer.finish(timeout_seconds=0)
        assert "the last 101 records of the journal may not be on disk" in caplog.text
        assert len(tokens(tmp_path)) == 0
        # nothing was lost by giving up
        disk.may_go_on.set()
        writer.wait()
    else:
        finished = in_thread(lambda: writer.finish(timeout_seconds=60), name="finish")
        disk.may_go_on.set()
        finished.result(60)
        assert not caplog.records
    assert len(tokens(tmp_path)) == 100


def test_a_run_that_fails_says_what_kept_its_records_from_being_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    writer = JournalWriter(tmp_path, sync=full)
    writer.put(file_of(tmp_path, step=4, attempt=1), begun(1))
    writer.finish(timeout_seconds=60)
    assert "the last 1 records of the journal may not be on disk: the volume of" in caplog.text


def test_wait_says_that_the_volume_is_full(tmp_path: Path) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    writer = JournalWriter(tmp_path, sync=full)
    writer.put(file_of(tmp_path, step=4, attempt=1), begun(1))
    with pytest.raises(VolumeFullError, match="is full"):
        writer.wait()
    # a caller that continues to finish samples is not stopped in the middle of them
    writer.put(file_of(tmp_path, step=4, attempt=1), generated(0))
    with pytest.raises(VolumeFullError, match="is full"):
        writer.wait()


def test_an_attempt_that_begins_again_cuts_its_torn_record_off_and_goes_on(tmp_path: Path) -> None:
    path = write(tmp_path, 1, begun(1), generated(0), more=encode_frame(generated(1))[:-3])
    writer = JournalWriter(tmp_path)
    writer.put(path, begun(1))
    writer.put(path, generated(2))
    writer.close()
    assert tokens(tmp_path) == {0: 5, 2: 5}


def test_a_step_that_is_removed_is_gone_once_the_writer_has_waited(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path)
    path = file_of(tmp_path, step=4, attempt=1)
    writer.put(path, begun(1))
    writer.remove(path.parent)
    writer.wait()
    assert not path.parent.exists()
    writer.close()

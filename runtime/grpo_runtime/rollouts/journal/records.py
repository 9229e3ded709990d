"""The records of a journal, and each as a frame. G samples of a group, F reward functions.

A file holds the records of one step that one attempt has written: `Begun` first, `Generated` for each sample
as it finishes or is given up, `Scored` for each group, in asynchronous training `Composed`, and `Trained`
after the update.
"""

import math
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_runtime.rewards.chunk import Column
from grpo_runtime.rewards.types import FailureKind, RewardFailure
from grpo_runtime.rollouts.frames import Frame
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import GenerateRequest, GivenUp, Rollout
from grpo_runtime.rollouts.wire import episode_frame, read_episode

FORMAT = 1
_GENERATED, _GIVEN_UP = "generated", "given_up"
"""Kinds of records of samples."""
_FAILED_BEFORE = "it failed in an earlier attempt, whose log says why"


@dataclass(frozen=True, kw_only=True)
class Begun:
    """Whose file it is."""

    job_uid: str
    attempt: int
    step: int
    is_fresh: bool
    """Whether this attempt does the step from its beginning, so that nothing of a lower attempt counts."""

    def frame(self) -> Frame:
        """The record: the first of a file, and once more for each time that an attempt begins again."""
        return Frame({"kind": "begun", "format": FORMAT, **vars(self)}, {})

    @classmethod
    def of(cls, frame: Frame) -> "Begun":
        """The record in a frame. Raises ValueError for a file of another format."""
        header = frame.header
        if header["format"] != FORMAT:
            raise ValueError(f"the format is {header['format']}, not {FORMAT}")
        return cls(
            job_uid=header["job_uid"],
            attempt=header["attempt"],
            step=header["step"],
            is_fresh=header["is_fresh"],
        )


@dataclass(frozen=True, kw_only=True)
class Generated:
    """One sample that is finished or given up, or what there is of one. Its prompt is not written again, only
    what identifies it."""

    group: int
    """Its number, as in `Group`."""
    sample: int
    """Its index in the group."""
    seed: int
    prompt_checksum: int
    sampling: int
    """Checksum of how it was sampled."""
    completion: Rollout | GivenUp
    """Without the prompt of its first sequence, where that is the one that was asked for."""

    @classmethod
    def of_group(
        cls, group: Group, sample: int, *, sampling: int, so_far: Rollout | None = None
    ) -> "Generated":
        """What is written of a sample that is finished or given up, or what there is of it, `so_far`."""
        found, request = so_far or group.rollouts[sample], group.requests[sample]
        assert found is not None
        if isinstance(found, Rollout) and found.prompt_ids == request.prompt_ids:
            found = found.of_prompt(())
        return cls(
            group=group.number,
            sample=sample,
            seed=request.seed,
            prompt_checksum=tokens_checksum(request.prompt_ids),
            sampling=sampling,
            completion=found,
        )

    @property
    def is_unfinished(self) -> bool:
        """Whether the sample is not finished."""
        return isinstance(self.completion, Rollout) and self.completion.is_aborted

    def answers(self, request: GenerateRequest, *, sampling: int) -> bool:
        """Whether it is the sample that `request` asks for, sampled in this way."""
        expected = (sampling, request.seed, tokens_checksum(request.prompt_ids))
        return (self.sampling, self.seed, self.prompt_checksum) == expected

    def rollout_of(self, request: GenerateRequest) -> Rollout | GivenUp:
        """The sample, which answers `request`, with its prompts."""
        found = self.completion
        if isinstance(found, GivenUp) or found.prompt_ids:
            return found
        return found.of_prompt(request.prompt_ids)

    def frame(self) -> Frame:
        """The record."""
        found = self.completion
        if isinstance(found, GivenUp):
            kind, written = _GIVEN_UP, Frame({"why": found.why, "num_tries": found.num_tries}, {})
        else:
            kind, written = _GENERATED, episode_frame(found)
        header = {
            "kind": kind,
            "group": self.group,
            "sample": self.sample,
            "seed": self.seed,
            "prompt_checksum": self.prompt_checksum,
            "sampling": self.sampling,
        }
        return Frame({**header, **written.header}, written.arrays)

    @classmethod
    def of(cls, frame: Frame) -> "Generated":
        """The record in a frame."""
        header = frame.header
        is_given_up = header["kind"] == _GIVEN_UP
        return cls(
            group=header["group"],
            sample=header["sample"],
            seed=header["seed"],
            prompt_checksum=header["prompt_checksum"],
            sampling=header["sampling"],
            completion=GivenUp(header["why"], header["num_tries"]) if is_given_up else read_episode(frame),
        )


@dataclass(frozen=True, kw_only=True)
class Scored:
    """What the reward functions gave for a group."""

    group: int
    """Its number, as in `Group`: other prompts may have the same completions."""
    names: tuple[str, ...]
    """Names of the F functions."""
    checksums: tuple[int, ...]
    """[G], of the completions that were scored: rewards of others are not theirs."""
    columns: tuple[Column, ...]
    """[F]. Of a failure only its kind is written, and on how many completions."""

    def is_of(self, group: Group, *, names: Sequence[str]) -> bool:
        """Whether these are the rewards of that group by these functions."""
        found = (self.group, self.names, self.checksums)
        return found == (group.number, tuple(names), _checksums(group))

    @classmethod
    def of_group(cls, group: Group, *, names: Sequence[str]) -> "Scored":
        """What is written of a group that is scored."""
        return cls(
            group=group.number, names=tuple(names), checksums=_checksums(group), columns=group.scored_columns
        )

    def frame(self) -> Frame:
        """The record. Rewards are float64 as the functions gave them; a missing one differs from
        every number."""
        values = [value for column in self.columns for value in column.values]
        logged = [
            (name, metric, found)
            for name, column in zip(self.names, self.columns, strict=True)
            for metric, found in column.logged.items()
        ]
        failures = [failure for column in self.columns for failure in column.failures]
        return Frame(
            {
                "kind": "scored",
                "group": self.group,
                "names": list(self.names),
                "logged": [[name, metric, len(found)] for name, metric, found in logged],
                "failures": [[failure.name, failure.kind.value, failure.num_samples] for failure in failures],
            },
            {
                "checksums": array("I", self.checksums),
                "is_given": array("B", [value is not None for value in values]),
                "rewards": array("d", [0.0 if value is None else value for value in values]),
                "logged": array("d", [number for _, _, found in logged for number in found]),
            },
        )

    @classmethod
    def of(cls, frame: Frame) -> "Scored":
        """The record in a frame."""
        header, arrays = frame.header, frame.arrays
        names = tuple(header["names"])
        values = [
            reward if is_given else None
            for is_given, reward in zip(arrays["is_given"], arrays["rewards"], strict=True)
        ]
        size = len(arrays["checksums"])
        logged: dict[str, dict[str, list[float]]] = {name: {} for name in names}
        numbers = iter(arrays["logged"])
        for name, metric, count in header["logged"]:
            logged[name][metric] = [next(numbers) for _ in range(count)]
        columns = tuple(
            Column(
                values=values[place * size : (place + 1) * size],
                failures=tuple(
                    _failure(name, kind, num_samples)
                    for of_name, kind, num_samples in header["failures"]
                    if of_name == name
                ),
                logged=logged[name],
            )
            for place, name in enumerate(names)
        )
        return cls(group=header["group"], names=names, checksums=tuple(arrays["checksums"]), columns=columns)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The digest of the weights after the update of a step."""

    digest: str
    layout: str
    """How the weights were spread over the ranks: digests of different layouts cannot be compared."""

    def frame(self) -> Frame:
        """The record."""
        return Frame({"kind": "trained", **vars(self)}, {})

    @classmethod
    def of(cls, frame: Frame) -> "Trained":
        """The record in a frame."""
        return cls(digest=frame.header["digest"], layout=frame.header["layout"])


@dataclass(frozen=True, kw_only=True)
class Composed:
    """Which groups have ended with a step of asynchronous training, by their numbers. It is on disk before
    the step is trained."""

    trained: tuple[int, ...]
    """In the order in which the step is trained on them."""
    filtered: tuple[int, ...]
    failed: tuple[int, ...]
    dropped: tuple[int, ...]
    num_drawn: int
    """Prompts that the run had drawn by then."""
    checksum: int
    """Of tokens, logprobs and rewards of those that are trained, and of those that are filtered."""

    @property
    def ordinals(self) -> tuple[int, ...]:
        """All of them."""
        return self.trained + self.filtered + self.failed + self.dropped

    def is_of(self, groups: Sequence[Group]) -> bool:
        """Whether `groups`, those that are trained and then those that are filtered, are as they were."""
        return all(group.is_scored for group in groups) and _contents_checksum(groups) == self.checksum

    @classmethod
    def of_step(
        cls,
        *,
        trained: Sequence[Group],
        filtered: Sequence[Group],
        failed: Sequence[int],
        dropped: Sequence[int],
        num_drawn: int,
    ) -> "Composed":
        """What is written of a step that is going to be trained."""
        return cls(
            trained=tuple(group.number for group in trained),
            filtered=tuple(group.number for group in filtered),
            failed=tuple(failed),
            dropped=tuple(dropped),
            num_drawn=num_drawn,
            checksum=_contents_checksum([*trained, *filtered]),
        )

    def frame(self) -> Frame:
        """The record."""
        return Frame({"kind": "composed", **vars(self)}, {})

    @classmethod
    def of(cls, frame: Frame) -> "Composed":
        """The record in a frame."""
        header = frame.header
        return cls(
            trained=tuple(header["trained"]),
            filtered=tuple(header["filtered"]),
            failed=tuple(header["failed"]),
            dropped=tuple(header["dropped"]),
            num_drawn=header["num_drawn"],
            checksum=header["checksum"],
        )


Record = Begun | Generated | Scored | Composed | Trained

_KINDS: Mapping[str, Any] = {
    "begun": Begun,
    _GENERATED: Generated,
    _GIVEN_UP: Generated,
    "scored": Scored,
    "composed": Composed,
    "trained": Trained,
}


def decode_record(frame: Frame) -> Record:
    """The record in a frame. Raises KeyError, ValueError or TypeError for what is none."""
    record: Record = _KINDS[frame.header["kind"]].of(frame)
    return record


def tokens_checksum(token_ids: Sequence[int]) -> int:
    """CRC-32 of token ids."""
    return zlib.crc32(array("i", token_ids).tobytes())


def _checksums(group: Group) -> tuple[int, ...]:
    return tuple(_tokens_of(rollout) for rollout in group.completions)


def _tokens_of(rollout: Rollout) -> int:
    """Checksum of the tokens of an episode but for its first prompt."""
    checksum = tokens_checksum(rollout.completion_ids)
    for branch in rollout.branches:
        lengths = len(branch.prompt_ids), len(branch.completion_ids)
        tokens = array("i", (*lengths, *branch.prompt_ids, *branch.completion_ids))
        checksum = zlib.crc32(tokens.tobytes(), checksum)
    return checksum


def _contents_checksum(groups: Sequence[Group]) -> int:
    checksum = 0
    for group in groups:
        for rollout in group.completions:
            checksum = zlib.crc32(array("i", rollout.completion_ids).tobytes(), checksum)
            checksum = zlib.crc32(array("f", rollout.rollout_logprobs).tobytes(), checksum)
            for branch in rollout.branches:
                checksum = zlib.crc32(array("i", branch.prompt_ids).tobytes(), checksum)
                checksum = zlib.crc32(array("i", branch.completion_ids).tobytes(), checksum)
                checksum = zlib.crc32(array("f", branch.rollout_logprobs).tobytes(), checksum)
        rewards = [math.nan if value is None else value for row in group.rewards for value in row]
        checksum = zlib.crc32(array("d", rewards).tobytes(), checksum)
    return checksum


def _failure(name: str, kind: str, num_samples: int) -> RewardFailure:
    return RewardFailure(
        name=name,
        kind=FailureKind(kind),
        reason=_FAILED_BEFORE,
        num_samples=num_samples,
        sample={},
    )

"""The records of a journal, and each as a frame. B samples of a step, F reward functions.

A file holds the records of one step that one attempt has written: `Begun` first, `Generated` for each sample
as it finishes, `Scored` once all of them are scored, `Trained` after the update.
"""

import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.rollout.interface import GenerateRequest, Rollout, VersionSpan
from grpo_runtime.trainer.journal.framing import Frame
from grpo_runtime.trainer.scoring import Scores

FORMAT = 1
_STOP, _LENGTH = "stop", "length"


@dataclass(frozen=True, kw_only=True)
class Begun:
    """Whose file it is."""

    job_uid: str
    attempt: int
    step: int
    is_fresh: bool
    """Whether this attempt does the step from its beginning, so that nothing of a lower attempt counts."""

    def frame(self) -> Frame:
        """As a record: the first of a file, and once more for each time that an attempt begins again."""
        return Frame({"kind": "begun", "format": FORMAT, **vars(self)}, {})

    @classmethod
    def of(cls, frame: Frame) -> "Begun":
        """See `frame`. Raises ValueError for a file of another format."""
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
    """One finished sample. Its prompt is not written again, only what tells it from another."""

    prompt_index: int
    sample_index: int
    seed: int
    prompt_checksum: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """float32 values, in nats."""
    loss_mask: tuple[bool, ...] | None
    """See `Rollout`."""
    versions: tuple[VersionSpan, ...]
    is_terminated: bool
    engine: str
    sampling: int | None
    """Checksum of how it was sampled; None in a journal of a release that did not write it, which knew only
    what a running job cannot change."""

    @classmethod
    def of_rollout(
        cls, rollout: Rollout, *, prompt_index: int, sample_index: int, seed: int, sampling: int
    ) -> "Generated":
        """What is written of a sample."""
        return cls(
            prompt_index=prompt_index,
            sample_index=sample_index,
            seed=seed,
            prompt_checksum=tokens_checksum(rollout.prompt_ids),
            token_ids=rollout.completion_ids,
            logprobs=rollout.rollout_logprobs,
            loss_mask=rollout.loss_mask,
            versions=rollout.versions,
            is_terminated=rollout.is_terminated,
            engine=rollout.engine,
            sampling=sampling,
        )

    def answers(self, request: GenerateRequest, *, sampling: int) -> bool:
        """Whether it is the sample that `request` asks for, sampled in this way."""
        if self.sampling not in (None, sampling):
            return False
        return (self.seed, self.prompt_checksum) == (request.seed, tokens_checksum(request.prompt_ids))

    def rollout(self, request: GenerateRequest) -> Rollout:
        """The sample as an engine would give it."""
        return Rollout(
            prompt_ids=request.prompt_ids,
            completion_ids=self.token_ids,
            rollout_logprobs=self.logprobs,
            versions=self.versions,
            is_terminated=self.is_terminated,
            engine=self.engine,
            loss_mask=self.loss_mask,
        )

    def frame(self, *, step: int) -> Frame:
        """As a record of `step`."""
        header: dict[str, Any] = {
            "kind": "generated",
            "step": step,
            "prompt": self.prompt_index,
            "sample": self.sample_index,
            "seed": self.seed,
            "prompt_checksum": self.prompt_checksum,
            "versions": [[str(span.version), span.start, span.end] for span in self.versions],
            "finish_reason": _STOP if self.is_terminated else _LENGTH,
            "engine": self.engine,
        }
        if self.sampling is not None:
            header["sampling"] = self.sampling
        arrays: dict[str, array[Any]] = {
            "token_ids": array("i", self.token_ids),
            "logprobs": array("f", self.logprobs),
        }
        if self.loss_mask is not None:
            arrays["loss_mask"] = array("B", self.loss_mask)
        return Frame(header, arrays)

    @classmethod
    def of(cls, frame: Frame) -> "Generated":
        """See `frame`."""
        header = frame.header
        mask = frame.arrays.get("loss_mask")
        return cls(
            prompt_index=header["prompt"],
            sample_index=header["sample"],
            seed=header["seed"],
            prompt_checksum=header["prompt_checksum"],
            token_ids=tuple(frame.arrays["token_ids"]),
            logprobs=tuple(frame.arrays["logprobs"]),
            loss_mask=None if mask is None else tuple(bool(is_sampled) for is_sampled in mask),
            versions=tuple(
                VersionSpan(PolicyVersion.parse(version), start, end)
                for version, start, end in header["versions"]
            ),
            is_terminated=header["finish_reason"] == _STOP,
            engine=header["engine"],
            sampling=header.get("sampling"),
        )


@dataclass(frozen=True, kw_only=True)
class Scored:
    """What the reward functions gave for all samples of a step, or of one round of it."""

    names: tuple[str, ...]
    """Of the F functions."""
    checksums: tuple[int, ...]
    """[B], of the completions that were scored: rewards of others are not theirs."""
    scores: Scores
    first_group: int = 0
    """Groups of the step before them: other prompts may have the same completions."""

    def is_of(self, rollouts: Sequence[Rollout], *, names: Sequence[str], first_group: int = 0) -> bool:
        """Whether these are the scores of `rollouts` in this place of the step by these functions."""
        found = (self.names, self.first_group, self.checksums)
        return found == (tuple(names), first_group, _checksums(rollouts))

    @classmethod
    def of_scores(
        cls, scores: Scores, rollouts: Sequence[Rollout], *, names: Sequence[str], first_group: int = 0
    ) -> "Scored":
        """What is written of a call."""
        return cls(names=tuple(names), checksums=_checksums(rollouts), scores=scores, first_group=first_group)

    def frame(self, *, step: int) -> Frame:
        """As a record of `step`. Rewards are float64 as the functions gave them; that there is none is told
        apart from every number."""
        values = [value for row in self.scores.values for value in row]
        metrics = self.scores.metrics
        header = {"kind": "scored", "step": step, "names": list(self.names), "metrics": list(metrics)}
        if self.first_group:
            header["first_group"] = self.first_group
        return Frame(
            header,
            {
                "checksums": array("I", self.checksums),
                "is_given": array("B", [value is not None for value in values]),
                "rewards": array("d", [0.0 if value is None else value for value in values]),
                "metrics": array("d", metrics.values()),
            },
        )

    @classmethod
    def of(cls, frame: Frame) -> "Scored":
        """See `frame`."""
        names, arrays = tuple(frame.header["names"]), frame.arrays
        values = [
            reward if is_given else None
            for is_given, reward in zip(arrays["is_given"], arrays["rewards"], strict=True)
        ]
        rows = tuple(tuple(values[at : at + len(names)]) for at in range(0, len(values), len(names)))
        metrics: Mapping[str, float] = dict(zip(frame.header["metrics"], arrays["metrics"], strict=True))
        return cls(
            names=names,
            checksums=tuple(arrays["checksums"]),
            scores=Scores(rows, metrics),
            first_group=frame.header.get("first_group", 0),
        )


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The digest of the weights after the update of a step."""

    digest: str
    layout: str
    """How the weights were spread over the ranks: digests of different layouts cannot be compared."""

    def frame(self, *, step: int) -> Frame:
        """As a record of `step`."""
        return Frame({"kind": "trained", "step": step, **vars(self)}, {})

    @classmethod
    def of(cls, frame: Frame) -> "Trained":
        """See `frame`."""
        return cls(digest=frame.header["digest"], layout=frame.header["layout"])


Record = Begun | Generated | Scored | Trained

_KINDS: Mapping[str, Any] = {
    "begun": Begun,
    "generated": Generated,
    "scored": Scored,
    "trained": Trained,
}


def decode_record(frame: Frame) -> Record:
    """The record in a frame. Raises KeyError, ValueError or TypeError for what is none."""
    record: Record = _KINDS[frame.header["kind"]].of(frame)
    return record


def tokens_checksum(token_ids: Sequence[int]) -> int:
    """CRC-32 of token ids."""
    return zlib.crc32(array("i", token_ids).tobytes())


def _checksums(rollouts: Sequence[Rollout]) -> tuple[int, ...]:
    return tuple(tokens_checksum(rollout.completion_ids) for rollout in rollouts)

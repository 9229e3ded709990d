"""What engines are asked and what they answer, as frames: over HTTP, in the pipe of an engine's process,
between ranks, and in the journal."""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.rollouts.frames import Frame
from grpo_runtime.rollouts.interface import (
    AgentCalls,
    AgentTurn,
    GenerateRequest,
    Rollout,
    Segment,
    VersionSpan,
)

_STOP, _LENGTH, _ABORT = "stop", "length", "abort"
_MOST_STOPS, _LONGEST_STOP = 64, 4096
"""The server of an engine looks for these texts while it has other work; a job and an agent together ask for
half as many at most, of 256 characters."""
_BRANCHES = "branches"
_ARRAYS_OF_A_BRANCH = ("prompt_ids", "token_ids", "logprobs", "loss_mask")


@dataclass(frozen=True)
class EngineCall:
    """What the guard of an engine is asked for: completions of a prompt, or the logprobs of its tokens.

    `parameters` are vLLM's of completions, and a call for logprobs has none. Of `n` completions with a seed,
    vLLM draws number i with seed + i. `core` is the one of an engine's cores that is to answer, from 0; None
    leaves it to vLLM. With a `cache_salt` the engine reads cached prefixes only of calls with the same one.
    The last `num_so_far` of its tokens belong to the completion: texts of `stop` may begin in them.
    """

    token_ids: Sequence[int]
    parameters: Mapping[str, Any]
    core: int | None = None
    cache_salt: str | None = None
    num_so_far: int = 0

    def frame(self) -> Frame:
        """The call as it is sent."""
        header: dict[str, Any] = {"parameters": self.parameters, "core": self.core}
        if self.cache_salt is not None:
            header["cache_salt"] = self.cache_salt
        if self.num_so_far:
            header["num_so_far"] = self.num_so_far
        return Frame(header, {"token_ids": _ids(self.token_ids)})

    @classmethod
    def of(cls, frame: Frame) -> "EngineCall":
        """The call in a frame. Raises KeyError, TypeError or ValueError for a frame that holds none."""
        header = frame.header
        cache_salt = header.get("cache_salt")
        if cache_salt is not None and not isinstance(cache_salt, str):
            raise TypeError(f"the cache salt {cache_salt!r} is no text")
        token_ids, num_so_far = _read_ids(frame), header.get("num_so_far", 0)
        if not (isinstance(num_so_far, int) and 0 <= num_so_far <= len(token_ids)):
            raise ValueError(f"{num_so_far!r} of {len(token_ids)} tokens cannot belong to the completion")
        parameters = dict(header["parameters"])
        _require_stops(parameters.get("stop", []))
        return cls(
            token_ids,
            parameters,
            core=header["core"],
            cache_salt=cache_salt,
            num_so_far=num_so_far,
        )


def request_frame(request: GenerateRequest) -> Frame:
    """One completion to sample, for a colocated engine, which goes on with none."""
    assert request.so_far is None, "a colocated engine samples whole completions"
    header = {
        "seed": request.seed,
        "is_evaluation": request.is_evaluation,
        "max_tokens": request.max_tokens,
        "num_group_tokens": request.num_group_tokens,
        "session": request.session,
        "stop": request.stop,
        "own_parameters": request.own_parameters,
    }
    return Frame(header, {"token_ids": _ids(request.prompt_ids)})


def read_request(frame: Frame) -> GenerateRequest:
    """The request in a frame. Raises KeyError, TypeError or ValueError for a frame that holds none."""
    header = frame.header
    return GenerateRequest(prompt_ids=_read_ids(frame), **{**header, "stop": tuple(header["stop"])})


def completion_frame(rollout: Rollout) -> Frame:
    """One sequence without its prompt, which the reader knows. Logprobs are float32."""
    assert not rollout.branches, "an episode of several sequences is written by episode_frame"
    header = {
        "versions": [[str(span.version), span.start, span.end] for span in rollout.versions],
        "finish_reason": _finish_reason(rollout),
        "engine": rollout.engine,
    }
    if rollout.segments:
        header["segments"] = [[segment.engine, segment.start, segment.end] for segment in rollout.segments]
    arrays: dict[str, array[Any]] = {
        "token_ids": _ids(rollout.completion_ids),
        "logprobs": array("f", rollout.rollout_logprobs),
    }
    if rollout.loss_mask is not None:
        arrays["loss_mask"] = array("B", rollout.loss_mask)
    return Frame(header, arrays)


def read_completion(frame: Frame, *, prompt_ids: tuple[int, ...]) -> Rollout:
    """The completion in a frame. Raises KeyError, TypeError or ValueError for a frame that holds none."""
    header, mask = frame.header, frame.arrays.get("loss_mask")
    if header["finish_reason"] not in (_STOP, _LENGTH, _ABORT):
        raise ValueError(f"a completion was ended by {header['finish_reason']}")
    return Rollout(
        prompt_ids=prompt_ids,
        completion_ids=_read_ids(frame),
        rollout_logprobs=tuple(_array(frame, "logprobs", "f")),
        versions=tuple(_span(*written) for written in header["versions"]),
        is_terminated=header["finish_reason"] == _STOP,
        engine=header["engine"],
        loss_mask=None if mask is None else tuple(bool(is_sampled) for is_sampled in mask),
        is_aborted=header["finish_reason"] == _ABORT,
        segments=tuple(_segment(*written) for written in header.get("segments", ())),
    )


def episode_frame(rollout: Rollout) -> Frame:
    """All sequences of an episode with their prompts, but for a first one without, what its agent asked for
    and returned, and what reward functions see of it."""
    first, *branches = rollout.sequences
    frame = completion_frame(first)
    headers: list[Mapping[str, Any]] = []
    arrays, header = dict(frame.arrays), dict(frame.header)
    if first.prompt_ids:
        arrays["prompt_ids"] = _ids(first.prompt_ids)
    if rollout.returned is not None:
        header["returned"] = rollout.returned
    if rollout.trajectory is not None:
        header["trajectory"] = rollout.trajectory
    if rollout.calls is not None:
        header["calls"] = asdict(rollout.calls)
    for place, branch in enumerate(branches):
        written = completion_frame(branch)
        headers.append(written.header)
        arrays |= {f"{_BRANCHES}/{place}/{name}": values for name, values in written.arrays.items()}
        arrays[f"{_BRANCHES}/{place}/prompt_ids"] = _ids(branch.prompt_ids)
    if branches:
        header[_BRANCHES] = headers
    return Frame(header, arrays)


def read_episode(frame: Frame) -> Rollout:
    """The episode in a frame. Raises as `read_completion`."""
    branches = []
    for place, of_branch in enumerate(frame.header.get(_BRANCHES, ())):
        found = {name: frame.arrays.get(f"{_BRANCHES}/{place}/{name}") for name in _ARRAYS_OF_A_BRANCH}
        written = Frame(of_branch, {name: values for name, values in found.items() if values is not None})
        branches.append(read_completion(written, prompt_ids=tuple(_array(written, "prompt_ids", "i"))))
    has_prompt = "prompt_ids" in frame.arrays
    first = read_completion(frame, prompt_ids=tuple(_array(frame, "prompt_ids", "i")) if has_prompt else ())
    header = frame.header
    calls = header.get("calls")
    return replace(
        first,
        branches=tuple(branches),
        returned=header.get("returned"),
        trajectory=header.get("trajectory"),
        calls=None if calls is None else _calls(calls),
    )


def read_completions(frames: Iterable[Frame], *, of: Sequence[GenerateRequest]) -> list[Rollout]:
    """A completion for each request, in their order. Raises as `read_completion`, and ValueError when their
    numbers differ."""
    return [
        read_completion(frame, prompt_ids=request.prompt_ids)
        for frame, request in zip(frames, of, strict=True)
    ]


def logprobs_frame(logprobs: Sequence[float]) -> Frame:
    """The logprobs of a probe, which need not be finite."""
    return Frame({}, {"logprobs": array("d", logprobs)})


def read_logprobs(frame: Frame) -> list[float]:
    """The logprobs in a frame. Raises KeyError for a frame that holds none."""
    return frame.arrays["logprobs"].tolist()


def _finish_reason(rollout: Rollout) -> str:
    if rollout.is_aborted:
        return _ABORT
    return _STOP if rollout.is_terminated else _LENGTH


def _ids(token_ids: Sequence[int]) -> "array[Any]":
    return array("i", token_ids)


def _read_ids(frame: Frame) -> tuple[int, ...]:
    return tuple(_array(frame, "token_ids", "i"))


def _array(frame: Frame, name: str, typecode: str) -> "array[Any]":
    found = frame.arrays[name]
    if found.typecode != typecode:
        raise ValueError(f"{name} have the type {found.typecode}, not {typecode}")
    return found


def _calls(written: Mapping[str, Any]) -> AgentCalls:
    turns = [AgentTurn(**{**turn, "messages": tuple(turn["messages"])}) for turn in written["turns"]]
    return AgentCalls(**{**written, "turns": turns})


def _span(version: str, start: int, end: int) -> VersionSpan:
    _require_indices(start, end)
    return VersionSpan(PolicyVersion.parse(version), start, end)


def _segment(engine: str, start: int, end: int) -> Segment:
    _require_indices(start, end)
    return Segment(engine, start, end)


def _require_stops(found: object) -> None:
    if not isinstance(found, list | tuple) or not all(isinstance(stop, str) for stop in found):
        raise TypeError("stop is no list of texts")
    if len(found) > _MOST_STOPS or any(len(stop) > _LONGEST_STOP for stop in found):
        raise ValueError(
            f"stop has more than {_MOST_STOPS} texts, or one of more than {_LONGEST_STOP} characters"
        )


def _require_indices(start: int, end: int) -> None:
    if not (isinstance(start, int) and isinstance(end, int)):
        raise TypeError(f"{start} to {end} are no indices of tokens")

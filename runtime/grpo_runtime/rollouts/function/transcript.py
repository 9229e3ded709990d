"""One completion of several turns, as rank 0 keeps it: what was sampled, and what was added."""

from collections.abc import Sequence

from grpo_runtime.data.seeds import turn_seed
from grpo_runtime.rollouts.interface import GenerateRequest, Rollout, Segment, VersionSpan


class Transcript:
    """Grows turn by turn to a `Rollout` of at most `max_tokens`."""

    def __init__(self, request: GenerateRequest, *, max_tokens: int, max_turns: int | None) -> None:
        """`request` is for the whole completion. The first turn has its seed."""
        self._request = request
        self._max_tokens = max_tokens
        self._max_turns = max_turns
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []
        self._is_sampled: list[bool] = []
        self._versions: list[VersionSpan] = []
        self._segments: list[Segment] = []
        self._engines: dict[str, None] = {}
        self._num_turns = 0
        self._is_terminated = True

    def add(self, token_ids: Sequence[int]) -> None:
        """Go on with tokens that no policy sampled, as far as there is room."""
        if not token_ids:
            return
        kept = list(token_ids)[: self._room]
        self._token_ids += kept
        self._logprobs += [0.0] * len(kept)
        self._is_sampled += [False] * len(kept)
        self._is_terminated = len(kept) == len(token_ids)

    def next_turn(self, max_tokens: int | None) -> GenerateRequest | None:
        """What the engines are asked for next; None when there is no room, which cuts the completion."""
        if not self._room or self._num_turns == self._max_turns:
            self._is_terminated = False
            return None
        return GenerateRequest(
            self.token_ids,
            seed=turn_seed(self._request.seed, turn=self._num_turns),
            is_evaluation=self._request.is_evaluation,
            max_tokens=min(self._room, max_tokens or self._room),
            num_group_tokens=len(self._request.prompt_ids),
        )

    def take(self, turn: Rollout) -> None:
        """Go on with what the engines have sampled."""
        start = len(self._token_ids)
        self._token_ids += turn.completion_ids
        self._logprobs += turn.rollout_logprobs
        self._is_sampled += [True] * len(turn.completion_ids)
        self._versions += [span.behind(start) for span in turn.versions]
        self._segments += [segment.behind(start) for segment in turn.segments]
        self._engines |= dict.fromkeys(segment.engine for segment in turn.segments) or {turn.engine: None}
        self._num_turns += 1
        self._is_terminated = turn.is_terminated

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Prompt and completion so far."""
        return (*self._request.prompt_ids, *self._token_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens of the completion so far."""
        return len(self._token_ids)

    @property
    def num_turns(self) -> int:
        """Turns that were sampled."""
        return self._num_turns

    def rollout(self) -> Rollout:
        """The completion as it is trained."""
        return Rollout(
            prompt_ids=self._request.prompt_ids,
            completion_ids=tuple(self._token_ids),
            rollout_logprobs=tuple(self._logprobs),
            versions=tuple(self._versions),
            is_terminated=self._is_terminated,
            engine=", ".join(self._engines),
            loss_mask=None if all(self._is_sampled) else tuple(self._is_sampled),
            segments=tuple(self._segments),
        )

    @property
    def _room(self) -> int:
        return self._max_tokens - len(self._token_ids)

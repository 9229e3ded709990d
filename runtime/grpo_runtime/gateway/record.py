"""What was sampled in a session, as it is trained: its own record, whatever anybody reports of the tokens."""

from collections.abc import Sequence
from typing import NamedTuple

from grpo_runtime.rollouts.function.transcript import Transcript
from grpo_runtime.rollouts.interface import GenerateRequest, Rollout


class Place(NamedTuple):
    """Where the tokens of a call are: [start, end) of the completion of a sequence, which is named by its
    index."""

    sequence: int
    start: int
    end: int


class Record:
    """The sequences of a session. A call whose prompt begins with all tokens of a sequence continues it, and
    what lies between is trained no more than a prompt is; any other call begins a sequence. So every token
    that was sampled is trained once."""

    def __init__(self, *, max_tokens: int) -> None:
        """`max_tokens` is the longest sequence, its prompt included."""
        self._max_tokens = max_tokens
        self._sequences: list[Transcript] = []
        self.places: list[Place] = []
        """Those of the calls, in the order in which they were answered."""
        self.num_sampled = 0
        """Tokens that the policy sampled."""

    def take(self, call: Rollout) -> None:
        """A call was answered."""
        self.num_sampled += call.num_sampled
        sequence = self._continued_by(call.prompt_ids)
        if sequence is None:
            request = GenerateRequest(call.prompt_ids, seed=0)
            room = self._max_tokens - len(call.prompt_ids)
            sequence = Transcript(request, max_tokens=room, max_turns=None)
            self._sequences.append(sequence)
        sequence.add(call.prompt_ids[len(sequence.token_ids) :])
        start = sequence.num_tokens
        sequence.take(call)
        self.places.append(Place(self._sequences.index(sequence), start, sequence.num_tokens))

    def would_begin(self, prompt_ids: Sequence[int]) -> bool:
        """Whether a call with this prompt would begin a sequence."""
        return self._continued_by(prompt_ids) is None

    @property
    def num_calls(self) -> int:
        """Calls that were answered by what was sampled."""
        return len(self.places)

    @property
    def num_sequences(self) -> int:
        return len(self._sequences)

    def rollouts(self) -> list[Rollout]:
        """The sequences, in the order in which they began."""
        return [sequence.rollout() for sequence in self._sequences]

    def _continued_by(self, prompt_ids: Sequence[int]) -> Transcript | None:
        """The longest sequence that the prompt begins with."""
        found = [
            sequence
            for sequence in self._sequences
            if tuple(prompt_ids[: len(known := sequence.token_ids)]) == known
        ]
        return max(found, key=lambda sequence: len(sequence.token_ids), default=None)

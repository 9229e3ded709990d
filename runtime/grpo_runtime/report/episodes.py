"""An episode of an agent as people read it: turn by turn, who said what and what of it was trained."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class Said:
    """A message that the agent sent, with its calls of tools as text. None of it is trained."""

    role: str
    text: str

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Self:
        """A message as OpenAI's API has it, its content a text."""
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        written = [f"{call['name']}({_arguments(call.get('arguments'))})" for call in calls]
        return cls(message["role"], "\n".join(filter(None, (message.get("content"), *written))))


@dataclass(frozen=True, kw_only=True)
class EpisodeTurn:
    """A call, and its answer by the policy."""

    said: Sequence[Said]
    """What is new with this call."""
    completion: str
    """All that was sampled for it, and so is trained, special tokens included."""
    sequence: int
    """The sequence of the episode that it is in, counted from 1."""
    num_tokens: int
    policy_versions: str
    """Of the weights that sampled it, as in `Sample`."""
    seconds: float
    """From the call to its answer."""
    waited_seconds: float
    """Those in which no engine had it yet."""
    segments: str = ""
    """Which engine sampled which of its tokens, where one has handed it over, as in `Sample`."""

    @property
    def summary(self) -> str:
        """What is said of it above its text: how much was trained, by which weights and engines, and how long
        it took."""
        segments = f" ({self.segments})" if self.segments else ""
        return (
            f"policy, {self.num_tokens} token{'s' * (self.num_tokens != 1)} trained{segments}, weights "
            f"{self.policy_versions}, {self.seconds:.3g} s, {self.waited_seconds:.3g} s of it waiting"
        )


@dataclass(frozen=True, kw_only=True)
class Episode:
    """What an agent and the policy made of a prompt."""

    environment: str
    turns: Sequence[EpisodeTurn]
    returned: float | None = None
    """The reward that the agent returned."""
    state: Any = None
    """The state that it returned, as JSON."""
    output: str = ""
    """The end of what its program wrote, of an episode that was cut."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """How often something failed, by whose failure it was."""

    @property
    def summary(self) -> str:
        """Its environment, turns, returned reward and failures in a line."""
        returned = "none" if self.returned is None else f"{self.returned:.4g}"
        counts = ", ".join(f"{whose} {num}" for whose, num in sorted(self.failures.items()))
        sequences = f" in {self.num_sequences} sequences" if self.num_sequences > 1 else ""
        return (
            f"{self.environment}: {len(self.turns)} turn{'s' * (len(self.turns) != 1)}{sequences}, "
            f"returned {returned}" + (f", failures: {counts}" if counts else "")
        )

    @property
    def num_sequences(self) -> int:
        """Sequences that its turns are in."""
        return max(turn.sequence for turn in self.turns)

    @property
    def state_text(self) -> str:
        """The state as JSON."""
        return _json(self.state)

    def to_json(self) -> str:
        """As a table has it."""
        return _json(asdict(self))

    @classmethod
    def of_json(cls, text: str) -> Self:
        """The episode that `to_json` has written."""
        written = json.loads(text)
        turns = [
            EpisodeTurn(**{**turn, "said": [Said(**said) for said in turn["said"]]})
            for turn in written["turns"]
        ]
        return cls(**{**written, "turns": turns})


def _arguments(found: Any) -> str:
    return found if isinstance(found, str) else _json(found)


def _json(found: Any) -> str:
    """JSON that any file takes: half of a pair of surrogates, as of a file's name that is no UTF-8, is ?."""
    return json.dumps(found, ensure_ascii=False).encode(errors="replace").decode()

"""What the rest of the runtime asks of an inference engine such as vLLM, and nothing of the library itself.

An `EngineKind` is one file in the folder of its library, beside `vllm`; `registry` has those that there are.
Trainers, the memory plan and local mode ask it too, and the fork server before it forks: importing its file
imports neither the library nor torch, and only the methods that say so import them.
"""

from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.settings import RolloutSettings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from grpo_runtime.engines.colocated.engine_child import EngineOfChild
    from grpo_runtime.engines.follow.follower import FollowedEngine
    from grpo_runtime.gateway.replies import ReplyReader


@dataclass(frozen=True)
class GpuFractions:
    """What an engine takes of the memory of a GPU where `engine.gpuMemoryUtilization` is not set."""

    alone: float
    """Of the whole GPU, by an engine that has it for itself."""
    asleep: float
    """Of what the trainer leaves free, by a colocated engine that sleeps while the trainer computes."""
    awake: float
    """Of what the trainer leaves free, by a colocated engine that never sleeps."""


class EngineKind(Protocol):
    """An inference engine, as a library that is installed in this image: what its processes need, and how
    engines are made of it for each role that they have."""

    @property
    def name(self) -> str:
        """What log lines and messages call it."""
        ...

    @property
    def gpu_fractions(self) -> GpuFractions:
        """How much of a GPU its engines take. The memory plan counts with it."""
        ...

    def is_cpu_build(self) -> bool:
        """Whether this image has its build for CPU. The trainer goes by it too: no process of a job uses a
        GPU then."""
        ...

    def environment(self) -> Mapping[str, str]:
        """What must be set in the process of an engine before torch is imported."""
        ...

    def colocated_environment(self) -> Mapping[str, str]:
        """`environment`, and what an engine in a training process or beside it needs besides."""
        ...

    def import_colocated(self) -> None:
        """Import all that `make_colocated` needs, so that forks of this process need not. Starts no thread
        and touches no GPU."""
        ...

    def make_colocated(self, run_config: RunConfig, *, model_dir: Path, name: str) -> "EngineOfChild":
        """An engine in this process, with the model in `model_dir`: a training process, or the one beside it.
        Imports the library. With tensor parallelism all ranks of an engine call this at the same time.

        Raises UserError naming the argument when the engine refuses the configuration.
        """
        ...

    def serve(
        self,
        settings: RolloutSettings,
        *,
        model_dir: Path,
        host: str,
        port: int,
        rendezvous_port: int,
        new_loop: Callable[[], AbstractEventLoop],
    ) -> None:
        """Run the engine of a rollout pod, or the workers of a pod that is not the first of an engine, until
        it dies or the process is asked to stop. Imports the library.

        Its application is behind `serve.guard.Guard`, has a `ServedEngine` as `state.engine_client`, and
        answers `routes.ENGINE_ROUTES` as vLLM does. It serves in a loop of `new_loop`, which notes that it is
        to stop.

        Raises UserError as `make_colocated` does.
        """
        ...

    def serve_followed(
        self,
        arguments: Sequence[str],
        *,
        model_dir: Path,
        version: str,
        host: str,
        port: int,
        new_loop: Callable[[], AbstractEventLoop],
        beside: "Callable[[FollowedEngine], AbstractAsyncContextManager[None]]",
    ) -> None:
        """Run a server of the OpenAI API over the model in `model_dir`, whose weights are `version`, until
        the engine dies or the process is asked to stop. Imports the library.

        `arguments` are the user's own. The application is behind `follow.openai_guard.FollowGuard`, and what
        `beside` makes of the engine is entered as long as it serves.

        Raises UserError as `make_colocated` does.
        """
        ...

    def reply_reader(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        tool_call_parser: str | None,
        reasoning_parser: str | None,
        template_arguments: Mapping[str, Any],
    ) -> "ReplyReader":
        """What reads the replies of a chat as its server does, with the parsers of these names, where the
        chat template gets these arguments. Imports the library, which takes seconds.

        Raises UserError for a parser that it does not have, or that does not fit the tokenizer.
        """
        ...


def with_user_arguments(given: Sequence[str]) -> str:
    """The user's own arguments, for a sentence about an engine that does not start."""
    return f" (engine.args: {' '.join(given)})" if given else ""

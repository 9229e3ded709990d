"""vLLM as an `EngineKind`. Importing this imports neither vLLM nor torch."""

import os
from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.engines.vllm.arguments import (
    GPU_FRACTIONS,
    IN_PROCESS_ENVIRONMENT,
    SERVER_ENVIRONMENT,
    engine_environment,
    followed_server_arguments,
    is_cpu_build,
    server_arguments,
)
from grpo_runtime.process.lasting_imports import lasting_imports
from grpo_runtime.settings import RolloutSettings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from vllm.v1.engine.async_llm import AsyncLLM

    from grpo_runtime.engines.follow.follower import FollowedEngine
    from grpo_runtime.engines.vllm.local_engine import VllmEngine
    from grpo_runtime.engines.vllm.reply_reader import VllmReplies


class VllmKind:
    """The kind that all of vLLM's engines are of, whichever build of vLLM is installed."""

    name = "vLLM"
    gpu_fractions = GPU_FRACTIONS

    def is_cpu_build(self) -> bool:
        """Whether it is vLLM's build for CPU."""
        return is_cpu_build()

    def environment(self) -> dict[str, str]:
        """What must be set before torch is imported."""
        return engine_environment(is_cpu=self.is_cpu_build())

    def colocated_environment(self) -> dict[str, str]:
        """Likewise, in a training process or beside it."""
        return self.environment() | IN_PROCESS_ENVIRONMENT

    def import_colocated(self) -> None:
        """Import vLLM with its offline engine."""
        import grpo_runtime.engines.vllm.local_engine  # noqa: F401 - so that no fork has to

    def make_colocated(self, run_config: RunConfig, *, model_dir: Path, name: str) -> "VllmEngine":
        """vLLM's offline engine in this process. Raises UserError as `VllmEngine` does."""
        from grpo_runtime.engines.vllm.local_engine import VllmEngine

        return VllmEngine(run_config, model_dir=model_dir, name=name)

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
        """Serve, or run workers, until the engine dies or the process is asked to stop."""
        import huggingface_hub.constants

        os.environ.update(SERVER_ENVIRONMENT)
        # it may have been imported for the model, and reads its variable at import only
        huggingface_hub.constants.HF_HUB_OFFLINE = True
        with lasting_imports():
            from grpo_runtime.engines.vllm.server import configure, run_server, run_workers

        run_config, node = settings.run_config, settings.node
        arguments = server_arguments(
            run_config,
            model_dir=model_dir,
            is_cpu=self.is_cpu_build(),
            host=host,
            port=port,
            node=node,
            rendezvous_port=rendezvous_port,
        )
        args, config = configure(arguments, model_dir=model_dir, given=run_config.engine.args)
        if node is not None and not node.is_leader:
            run_workers(config)
        else:
            run_server(args, config, new_loop=new_loop)

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
        """vLLM's server with the routes of the OpenAI API."""
        with lasting_imports():
            from grpo_runtime.engines.vllm.followed_engine import VllmFollowedEngine
            from grpo_runtime.engines.vllm.server import configure, run_server

        made = followed_server_arguments(
            arguments, model_dir=model_dir, is_cpu=self.is_cpu_build(), host=host, port=port
        )
        args, config = configure(made, model_dir=model_dir, given=arguments)

        @asynccontextmanager
        async def following(client: "AsyncLLM") -> AsyncIterator[None]:
            engine = VllmFollowedEngine(client)
            await engine.name_first(version)
            async with beside(engine):
                yield

        run_server(args, config, new_loop=new_loop, beside=following)

    def reply_reader(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        tool_call_parser: str | None,
        reasoning_parser: str | None,
        template_arguments: Mapping[str, Any],
    ) -> "VllmReplies":
        """vLLM's parsers without its server. Raises UserError as `VllmReplies` does."""
        from grpo_runtime.engines.vllm.reply_reader import VllmReplies

        return VllmReplies(
            tokenizer,
            tool_call_parser=tool_call_parser,
            reasoning_parser=reasoning_parser,
            template_arguments=template_arguments,
        )


VLLM = VllmKind()

"""Mode Colocated: how a training rank comes to hold an engine."""

from pathlib import Path

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.rollout.colocated import Colocated, EngineShare
from grpo_runtime.rollout.in_process import InProcessEngine
from grpo_runtime.rollout.interface import Engines
from grpo_runtime.settings import TrainerSettings
from grpo_runtime.trainer.distributed import Ranks


def share_engine(run: RunConfig, ranks: Ranks, *, model_dir: Path) -> EngineShare:
    """This rank's engine, or its part of one. All ranks come here at the same time, and none meets any other
    in a roll call until it is done: vLLM makes its own groups among them.

    Raises UserError naming the argument when vLLM refuses `engine.args`.
    """
    from grpo_runtime.rollout.vllm_in_process import VllmEngine

    channel = ranks.open_channel()
    engine = InProcessEngine(
        VllmEngine(run, model_dir=model_dir),
        sleep_level=run.engine.sleep_level,
        timeout_seconds=run.weight_sync.timeout_seconds,
    )
    return EngineShare(engine, channel, ranks_per_engine=run.engine.tensor_parallel_size)


def connect_colocated(ranks: Ranks, settings: TrainerSettings, *, model_dir: Path) -> Engines:
    """Rank 0's engine, and through it those of all ranks, which are in `share_engine` at this time."""
    share = share_engine(settings.run, ranks, model_dir=model_dir)
    return Colocated(share, sync_timeout_seconds=settings.run.weight_sync.timeout_seconds)

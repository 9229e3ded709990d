"""Mode Colocated: starts an engine in each training rank."""

from pathlib import Path

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.colocated.engine_share import EngineShare
from grpo_runtime.colocated.engines import ColocatedEngines
from grpo_runtime.colocated.rank_engine import RankEngine
from grpo_runtime.rollout.interface import Engines
from grpo_runtime.settings import TrainerSettings
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.weight_sync.registry import find_backend


def share_engine(run_config: RunConfig, ranks: Ranks, *, model_dir: Path) -> EngineShare:
    """Start this rank's engine, or its part of one. All ranks call this at the same time, and none of them
    meets the others meanwhile, because vLLM makes process groups of its own among them.

    Raises UserError naming the argument when vLLM refuses `engine.args`.
    """
    from grpo_runtime.colocated.vllm_engine import VllmEngine

    channel = ranks.open_channel()
    engine = RankEngine(
        VllmEngine(run_config, model_dir=model_dir),
        backend=find_backend(run_config.weight_sync_backend),
        sleep_level=run_config.engine.sleep_level,
        timeout_seconds=run_config.weight_sync.timeout_seconds,
    )
    share = EngineShare(engine, channel, ranks_per_engine=run_config.engine.tensor_parallel_size)
    ranks.count_finished_with(share.num_finished)
    return share


def connect_colocated(ranks: Ranks, settings: TrainerSettings, *, model_dir: Path) -> Engines:
    """The engines of all ranks, as rank 0 uses them. The other ranks are in `share_engine` meanwhile."""
    share = share_engine(settings.run_config, ranks, model_dir=model_dir)
    return ColocatedEngines(
        share,
        sync_timeout_seconds=settings.run_config.weight_sync.timeout_seconds,
        num_finished=lambda: ranks.num_finished,
    )

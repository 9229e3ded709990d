"""Rank 0: brings everything together that the loop needs, and closes it at the end."""

from collections.abc import Callable
from pathlib import Path

from grpo_api.contract.progress import EngineCounts, Progress, TrainerState
from grpo_api.contract.versions import PolicyVersion
from grpo_api.v1alpha1.spec import Mode
from grpo_runtime.colocated.engine_share import num_colocated_engines
from grpo_runtime.data.sampler import PromptSampler
from grpo_runtime.data.source import load_prompts
from grpo_runtime.report.reporter import Reporter
from grpo_runtime.rewards.pool import RewardPool
from grpo_runtime.rewards.registry import needs_answers
from grpo_runtime.rollout.interface import Engines
from grpo_runtime.settings import TrainerSettings
from grpo_runtime.trainer.checkpoint.saver import Saver
from grpo_runtime.trainer.loop import Coordinator
from grpo_runtime.trainer.prompting import check_prompts
from grpo_runtime.trainer.rank_context import RankContext
from grpo_runtime.trainer.scoring import Scorer, reward_functions

Connect = Callable[[TrainerSettings], Engines]
"""Gives rank 0 its engines; called inside its event loop."""


async def lead(context: RankContext, *, run_dir: Path, connect: Connect, keep_alive: list[object]) -> bool:
    """Train to the end: True when every step is done, False when asked to stop. The engines outlive the call
    in `keep_alive`: see `rank`."""
    settings, run_config = context.settings, context.settings.run_config
    sampler = _make_sampler(context)
    saver = Saver(
        context.store,
        model=context.loaded.model,
        strategy=context.strategy,
        tokenizer=context.loaded.tokenizer,
        output_dir=settings.output_dir,
        newest_step=context.resumed_from,
        origin=context.loaded.origin,
    )
    reporter = Reporter(
        output_dir=settings.output_dir, run_dir=run_dir, job=run_config.job, initial=_first_progress(context)
    )
    async with RewardPool(reward_functions(run_config, volumes_dir=settings.volumes_dir)) as pool:
        # last, because an engine takes minutes to start, which a wrong dataset or reward should not cost
        engines = connect(settings)
        keep_alive.append(engines)
        try:
            coordinator = Coordinator(
                run_config=run_config,
                attempt=settings.attempt,
                ranks=context.ranks,
                strategy=context.strategy,
                learner=context.learner,
                engines=engines,
                sampler=sampler,
                scorer=Scorer(pool, run_config, tokenizer=context.loaded.tokenizer),
                reporter=reporter,
                saver=saver,
                tokenizer=context.loaded.tokenizer,
            )
            is_done = await coordinator.train(context.state)
        finally:
            await engines.close()
    reporter.close(TrainerState.DONE if is_done else TrainerState.STOPPING)
    return is_done


def _make_sampler(context: RankContext) -> PromptSampler:
    """The prompts, all of them checked, at the position of the checkpoint."""
    run_config = context.settings.run_config
    prompts = load_prompts(
        run_config,
        volumes_dir=context.settings.volumes_dir,
        needs_answers=needs_answers(reward.builtin for reward in run_config.rewards),
    )
    check_prompts(prompts, run_config=run_config, tokenizer=context.loaded.tokenizer)
    sampler = PromptSampler(prompts, seed=run_config.algorithm.seed, is_shuffled=run_config.dataset.shuffle)
    if context.state.sampler is not None:
        sampler.load_state_dict(context.state.sampler)
    return sampler


def _first_progress(context: RankContext) -> Progress:
    settings, run_config, step = context.settings, context.settings.run_config, context.state.step
    is_colocated = run_config.mode is Mode.COLOCATED
    num_engines = num_colocated_engines(run_config) if is_colocated else run_config.topology.rollout_replicas
    return Progress(
        job_uid=run_config.job.uid,
        attempt=settings.attempt,
        state=TrainerState.WAITING_FOR_ROLLOUT,
        step=step,
        total_steps=run_config.algorithm.steps,
        policy_version=str(PolicyVersion(attempt=settings.attempt, step=step)),
        stale_samples=context.state.stale_samples,
        checkpoint_step=context.resumed_from,
        resumed_from_step=context.resumed_from,
        engines=EngineCounts(desired=num_engines),
        message="loading the weights into the engines"
        if is_colocated
        else "waiting for the first rollout engines",
    )

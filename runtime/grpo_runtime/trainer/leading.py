"""Rank 0: brings everything together that the loop needs, and closes it at the end."""

import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from grpo_api.contract import mismatch
from grpo_api.contract.learning_signal import StepsWithoutSignal
from grpo_api.contract.progress import BestEvaluation, EngineCounts, Progress, TrainerState
from grpo_api.contract.run_config import RunConfig
from grpo_api.contract.versions import PolicyVersion
from grpo_api.v1alpha1.spec import Mode
from grpo_runtime.data.prompt import Prompt
from grpo_runtime.data.sampler import PromptSampler
from grpo_runtime.engines.colocated.engine_slice import num_colocated_engines
from grpo_runtime.errors import UserError
from grpo_runtime.export.destination import open_destinations
from grpo_runtime.export.upload import ModelUploads
from grpo_runtime.process.background import LoopThread
from grpo_runtime.process.user_code import FunctionFile
from grpo_runtime.report.reporter import SINKS, Reporter
from grpo_runtime.report.run_file import keep_run_file
from grpo_runtime.report.trackers.registry import open_trackers
from grpo_runtime.rewards.kinds import reward_functions
from grpo_runtime.rewards.pool import RewardPool
from grpo_runtime.rollouts.agents.environments import Environments, started_environments
from grpo_runtime.rollouts.collect import EngineSource, Source
from grpo_runtime.rollouts.function.turns import FunctionOptions, RolloutFunction
from grpo_runtime.rollouts.interface import Engines
from grpo_runtime.rollouts.journal.async_journal import AsyncJournal
from grpo_runtime.rollouts.journal.journal import JOURNAL, Journal, NoJournal
from grpo_runtime.rollouts.sampling import sampling_checksum
from grpo_runtime.rollouts.scoring import Scorer
from grpo_runtime.settings import TrainerSettings
from grpo_runtime.trainer.checkpoint.model_export import MODEL_FOLDER
from grpo_runtime.trainer.checkpoint.saver import Saver
from grpo_runtime.trainer.ending import FINISH_SECONDS, closed_after_an_error, write_page
from grpo_runtime.trainer.evaluation import Evaluation
from grpo_runtime.trainer.loop import Coordinator
from grpo_runtime.trainer.rank_context import RankContext
from grpo_runtime.trainer.training_prompts import load_evaluation_prompts, load_training_prompts

logger = logging.getLogger(__name__)

Connect = Callable[[TrainerSettings], Engines]
"""Gives rank 0 its engines; called inside its event loop."""


async def lead(context: RankContext, *, run_dir: Path, connect: Connect, keep_alive: list[object]) -> bool:
    """Train to the end: True when every step is done, False when asked to stop. The engines outlive the call
    in `keep_alive`."""
    settings, run_config = context.settings, context.settings.run_config
    position = context.ranks.position
    position.at("reads the dataset")
    sampler, left_out = _make_sampler(context)
    saver = Saver(
        context.store,
        model=context.loaded.model,
        strategy=context.strategy,
        tokenizer=context.loaded.tokenizer,
        ranks=context.ranks,
        output_dir=settings.output_dir,
        newest_step=context.beginning.own_step,
        origin=context.loaded.origin,
        is_shared=run_config.saves_shards,
        exports_merged=run_config.exports_merged,
        reference=context.reference,
    )
    why_unbounded = mismatch.why_unbounded(run_config.sampling, asynchronous=run_config.asynchronous)
    if why_unbounded is not None:
        logger.info("%s", why_unbounded)
    reporter = Reporter(
        output_dir=settings.output_dir,
        run_dir=run_dir,
        job=run_config.job,
        initial=_first_progress(context),
        sinks=(*SINKS, *open_trackers(run_config, volumes_dir=settings.volumes_dir)),
        has_mismatch_bound=why_unbounded is None,
        reward_names=_reward_names(run_config),
    )
    with closed_after_an_error(reporter, output_dir=settings.output_dir) as time_left:
        keep_run_file(settings.output_dir, run_config)
        uploads = ModelUploads(
            open_destinations(run_config.export or (), volumes_dir=settings.volumes_dir),
            folder=settings.output_dir / MODEL_FOLDER,
            is_kept=run_config.keeps_output,
        )
        uploads.require_access()
        evaluated = load_evaluation_prompts(
            run_config,
            volumes_dir=settings.volumes_dir,
            decoder=context.loaded.decoder,
            vocab_size=context.loaded.vocab_size,
        )
        journal = _open_journal(context)
        rewards = RewardPool(
            reward_functions(run_config, volumes_dir=settings.volumes_dir),
            has_scored=context.beginning.own_step is not None,
        )
        reporter.progress.update(message=_waits_for_user_code(run_config))
        async with (
            LoopThread("rollouts") as thread,
            thread.entered(rewards) as pool,
            thread.entered(_started_maker(context, columns=sampler.first_row.columns)) as maker,
        ):
            scorer = Scorer(pool, run_config, decoder=context.loaded.decoder)
            position.at("tries the reward functions")
            await thread.run(scorer.try_out(sampler.first_row, step=context.state.step))
            # last, because an engine takes minutes to start, which a wrong dataset or reward should not cost
            reporter.progress.update(message=_waits_for_engines(run_config))
            position.at("starts or connects the engines")
            engines = connect(settings)
            keep_alive.append(engines)
            asynchronous = run_config.asynchronous
            takes_segments = asynchronous is not None and asynchronous.journal_segments
            try:
                async with thread.entered(_source(maker, engines, takes_segments=takes_segments)) as source:
                    coordinator = Coordinator(
                        run_config=run_config,
                        attempt=settings.attempt,
                        ranks=context.ranks,
                        strategy=context.strategy,
                        learner=context.learner,
                        engines=engines,
                        sampler=sampler,
                        scorer=scorer,
                        reporter=reporter,
                        saver=saver,
                        journal=journal,
                        decoder=context.loaded.decoder,
                        uploads=uploads,
                        left_out=left_out,
                        evaluation=_make_evaluation(context, evaluated, reporter),
                        source=source,
                        thread=thread,
                    )
                    is_done = await coordinator.train(context.state)
            except BaseException:
                # samples that are drawn and steps that are copied are worth keeping, whatever ended the run
                journal.finish(timeout_seconds=time_left.of(FINISH_SECONDS))
                saver.finish(timeout_seconds=time_left.of(FINISH_SECONDS))
                raise
            finally:
                await engines.close()
        journal.close()
    reporter.close(TrainerState.DONE if is_done else TrainerState.STOPPING)
    if is_done:
        write_page(settings.output_dir)
    return is_done


@asynccontextmanager
async def _started_maker(
    context: RankContext, *, columns: Collection[str]
) -> AsyncIterator[RolloutFunction | Environments | None]:
    """The processes of sampling.rolloutFunction or of environments, for data with these columns; None in a
    run without."""
    settings, loaded = context.settings, context.loaded
    run_config = settings.run_config
    environments, found = run_config.environments, run_config.sampling.rollout_function
    if environments is not None:
        async with started_environments(
            environments,
            run_config,
            decoder=loaded.decoder,
            vocab_size=loaded.vocab_size,
            volumes_dir=settings.volumes_dir,
            columns=columns,
        ) as started:
            yield started
    elif found is not None:
        code = found.config_map
        options = FunctionOptions(
            function=found.function,
            file=None if code is None else FunctionFile.of_spec(code, volumes_dir=settings.volumes_dir),
            timeout_seconds=found.timeout_seconds,
            max_turns=found.max_turns,
            max_tokens=run_config.sampling.max_tokens,
        )
        async with RolloutFunction(options, decoder=loaded.decoder, vocab_size=loaded.vocab_size) as function:
            yield function
    else:
        yield None


@asynccontextmanager
async def _source(
    maker: RolloutFunction | Environments | None, engines: Engines, *, takes_segments: bool
) -> AsyncIterator[Source]:
    """Where samples come from; `takes_segments` as in `EngineSource`."""
    if isinstance(maker, Environments):
        async with maker.over(engines) as source:
            yield source
    else:
        yield EngineSource(engines, takes_segments=takes_segments) if maker is None else maker.over(engines)


def _open_journal(context: RankContext) -> Journal | AsyncJournal | NoJournal:
    settings, run_config, ranks = context.settings, context.settings.run_config, context.ranks
    if not run_config.keeps_journal:
        return NoJournal()
    asynchronous = run_config.asynchronous
    make: type[Journal] | partial[AsyncJournal] = Journal
    if asynchronous is not None:
        make = partial(AsyncJournal, max_staleness=asynchronous.max_staleness)
    return make(
        settings.output_dir / JOURNAL,
        job_uid=run_config.job.uid,
        attempt=settings.attempt,
        sampling=sampling_checksum(run_config.sampling, environments=run_config.environments or ()),
        reward_names=_reward_names(run_config),
        layout=f"{run_config.strategy} over {ranks.world_size} x {context.strategy.device.type}",
    )


def _make_sampler(context: RankContext) -> tuple[PromptSampler, Mapping[str, int]]:
    """The prompts that can be used, all of them checked, at the position of the checkpoint, and how many were
    left out, by the metric of the reason."""
    run_config = context.settings.run_config
    found = context.prompts or load_training_prompts(
        run_config,
        volumes_dir=context.settings.volumes_dir,
        decoder=context.loaded.decoder,
        vocab_size=context.loaded.vocab_size,
    )
    sampler = PromptSampler(
        found.prompts, seed=run_config.algorithm.seed, is_shuffled=run_config.dataset.shuffle
    )
    if context.state.sampler is not None:
        try:
            sampler.load_state_dict(context.state.sampler)
        except UserError as error:
            if context.beginning.other is None:
                raise
            raise UserError(
                f"resumeFrom: {error}; with resumeFrom.load: Weights the data may be another"
            ) from error
    return sampler, found.left_out


def _make_evaluation(
    context: RankContext, prompts: tuple[Prompt, ...], reporter: Reporter
) -> Evaluation | None:
    run_config = context.settings.run_config
    options = run_config.dataset.eval
    if options is None:
        return None
    best = context.store.best()

    def mark_best(step: int, reward: float) -> None:
        context.store.mark_best(step, reward=reward)
        reporter.report_best_evaluation(step, reward=reward)

    return Evaluation(
        prompts,
        options=options,
        run_config=run_config,
        tokenizer=context.loaded.tokenizer,
        best_reward=best[1] if best else None,
        mark_best=mark_best,
    )


def _first_progress(context: RankContext) -> Progress:
    settings, run_config, step = context.settings, context.settings.run_config, context.state.step
    is_colocated = run_config.mode is Mode.COLOCATED
    num_engines = num_colocated_engines(run_config) if is_colocated else run_config.topology.rollout_replicas
    best = context.store.best()
    return Progress(
        job_uid=run_config.job.uid,
        attempt=settings.attempt,
        state=TrainerState.WAITING_FOR_ROLLOUT,
        step=step,
        total_steps=run_config.total_steps,
        policy_version=str(PolicyVersion(attempt=settings.attempt, step=step)),
        # that of the last step says that everything is written, also what is exported after it
        checkpoint_step=None if step == run_config.total_steps else context.beginning.own_step,
        best_evaluation=BestEvaluation(step=best[0], reward=best[1]) if best else None,
        resumed_from_step=context.beginning.resumed_step,
        loaded_step=context.beginning.loaded_step,
        set_aside=context.beginning.what_was_set_aside,
        steps_without_signal=StepsWithoutSignal.of(
            context.state.without_signal, step=step, rewards=_reward_names(run_config)
        ),
        engines=EngineCounts(desired=num_engines),
        message="checking the dataset and where the model goes",
    )


def _reward_names(run_config: RunConfig) -> list[str]:
    return [reward.name for reward in run_config.rewards]


def _waits_for_user_code(run_config: RunConfig) -> str:
    """What a run waits for before its engines."""
    names = ", ".join(
        f"{reward.name} (a model)" if reward.model else reward.name for reward in run_config.rewards
    )
    makers = [f"the agent of {environment.name}" for environment in run_config.environments or ()]
    if run_config.sampling.rollout_function:
        makers.append("the rollout function")
    return f"starting the rewards {names}{''.join(f' and {maker}' for maker in makers)}"


def _waits_for_engines(run_config: RunConfig) -> str:
    """What a run waits for before its first step."""
    if run_config.mode is not Mode.COLOCATED:
        return "waiting for the first rollout engines"
    return "starting Ray and the engines" if run_config.is_on_ray else "loading the weights into the engines"

"""A rank other than 0: executes what rank 0 announces, in mode Colocated with an engine of its own."""

from collections.abc import Callable

from transformers import PreTrainedTokenizerBase

from grpo_api.contract.run_config import RunConfig
from grpo_api.v1alpha1.spec import Mode
from grpo_runtime.engines.colocated.engine_slice import EngineSlice
from grpo_runtime.engines.colocated.engines import EngineExecutor
from grpo_runtime.model.weights import NamedTensors
from grpo_runtime.trainer.batch import receive_batch
from grpo_runtime.trainer.checkpoint.saver import ShardSaver
from grpo_runtime.trainer.distributed import Command, Ranks
from grpo_runtime.trainer.ending import FINISH_SECONDS
from grpo_runtime.trainer.learner import Learner
from grpo_runtime.trainer.rank_context import RankContext
from grpo_runtime.trainer.strategy.interface import Strategy
from grpo_runtime.trainer.weight_checks import make_probe, weight_digest


def follow(context: RankContext, *, start_slice: Callable[[], EngineSlice], keep_alive: list[object]) -> bool:
    """Follow rank 0 to the end: True when every step is done, False when asked to stop. The engine of this
    rank outlives the call in `keep_alive`."""
    run_config, ranks = context.settings.run_config, context.ranks
    saver = ShardSaver(
        context.store,
        model=context.loaded.model,
        strategy=context.strategy,
        ranks=ranks,
        output_dir=context.settings.output_dir,
        is_shared=run_config.saves_shards,
        reference=context.reference,
    )
    on_tick = _nothing
    if run_config.mode is Mode.COLOCATED:
        ranks.position.at("starts its engine")
        engine_slice = start_slice()
        keep_alive.append(engine_slice)
        on_tick = EngineExecutor(engine_slice, weights=context.strategy.engine_weights()).check
    follower = FollowingRank(
        run_config,
        ranks=ranks,
        strategy=context.strategy,
        learner=context.learner,
        saver=saver,
        tokenizer=context.loaded.tokenizer,
    )
    return follower.follow(step=context.state.step, on_tick=on_tick)


class FollowingRank:
    """Trains with rank 0, and takes part where whole tensors exist only while all ranks read them."""

    def __init__(
        self,
        run_config: RunConfig,
        *,
        ranks: Ranks,
        strategy: Strategy,
        learner: Learner,
        saver: ShardSaver,
        tokenizer: PreTrainedTokenizerBase,
    ) -> None:
        self._run_config = run_config
        self._tokenizer = tokenizer
        self._ranks = ranks
        self._strategy = strategy
        self._learner = learner
        self._saver = saver

    def follow(self, *, step: int, on_tick: Callable[[], None]) -> bool:
        """Execute commands from `step` on: True when every step is done, False when asked to stop.

        `on_tick` is called each time the ranks have met, and may raise. What kept this rank from writing its
        shard of a checkpoint is raised there too. Where it raises, a shard in flight is still written, for
        `FINISH_SECONDS`: rank 0 commits the checkpoint only with it.
        """
        try:
            return self._follow(step, on_tick)
        except BaseException:
            self._saver.finish(timeout_seconds=FINISH_SECONDS)
            raise

    def _follow(self, step: int, on_tick: Callable[[], None]) -> bool:
        def check() -> None:
            self._saver.check()
            on_tick()

        while True:
            command = self._ranks.next_command(on_tick=check)
            if command in (Command.DONE, Command.STOP):
                return command is Command.DONE
            if command is Command.TRAIN:
                self._learner.update(receive_batch(ranks=self._ranks), step=step)
                step += 1
            elif command is Command.SAVE:
                self._ranks.position.at("copies its shard of a checkpoint")
                self._saver.save(step)
            elif command is Command.DIGEST:
                weight_digest(self._strategy, ranks=self._ranks)
            elif self._strategy.is_sharded:
                self._take_part(command)

    def _take_part(self, command: Command) -> None:
        """Join the gather of the tensors that rank 0 reads. In mode Colocated the engine of this rank reads
        the weights, in its thread."""
        self._ranks.position.at("gives its part of the weights to rank 0")
        if command is Command.PROBE:
            make_probe(self._strategy, self._run_config, tokenizer=self._tokenizer)
        elif command is Command.SYNC and self._run_config.mode is not Mode.COLOCATED:
            self._read(self._strategy.engine_weights().tensors())
        elif command is Command.EXPORT:
            self._read(self._strategy.model_state())
            if self._run_config.exports_merged:
                self._read(self._strategy.engine_weights().tensors())

    def _read(self, tensors: NamedTensors) -> None:
        for _ in tensors:
            self._ranks.position.moved(work=1)


def _nothing() -> None:
    """Does nothing: what a rank without an engine does each time the ranks have met."""

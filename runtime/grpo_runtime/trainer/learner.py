"""One training phase: a batch in, updated weights and metrics out. The same on every rank."""

import torch

from grpo_api.v1alpha1.spec import AlgorithmSpec, ImportanceCorrectionMode, ImportanceCorrectionSpec
from grpo_runtime.algorithm.importance_correction import ImportanceCorrection
from grpo_runtime.algorithm.losses import compute_loss
from grpo_runtime.algorithm.metrics import Metric, Metrics, merge_metrics, metric_values, reduce_metrics
from grpo_runtime.algorithm.types import Denominators, LossInputs, LossOptions, LossOutput
from grpo_runtime.trainer.batch import Batch, micro_batches
from grpo_runtime.trainer.distributed import Ranks, peer_errors
from grpo_runtime.trainer.optimizer import PolicyOptimizer
from grpo_runtime.trainer.strategy_ddp import DDPStrategy

MAX_LOGITS = 1 << 27
"""Elements of the logits of one forward pass: 512 MiB in float32, and as much again for their gradient."""


class Learner:
    """Makes the policy better at what had a positive advantage."""

    def __init__(
        self, strategy: DDPStrategy, optimizer: PolicyOptimizer, algorithm: AlgorithmSpec, *, ranks: Ranks
    ) -> None:
        self.policy = strategy.policy
        self.optimizer = optimizer
        self._strategy = strategy
        self._ranks = ranks
        self._num_iterations = algorithm.num_iterations
        self._options = loss_options(algorithm)

    def update(self, batch: Batch, *, step: int) -> dict[str, float]:
        """Train `numIterations` times on the whole `batch`, of which this rank computes its part.

        Returns the metrics of all ranks together, by TRL's names. `step` (from 0) sets the learning rate.
        """
        # counts of the whole batch: the parts' losses then add up to the loss of one process
        denominators = Denominators.of_mask(batch.loss_mask)
        mine = batch.part(self._ranks.part(batch.advantages)).to(self.policy.device)
        pieces = micro_batches(mine, max_logits=MAX_LOGITS, vocab_size=self.policy.model.config.vocab_size)
        # under the weights that sampled the batch, once the first iteration has computed them
        old_logprobs: list[torch.Tensor] = []
        metrics: list[Metrics] = []
        for _ in range(self._num_iterations):
            for index, piece in enumerate(pieces):
                old = old_logprobs[index] if index < len(old_logprobs) else None
                with self._strategy.micro_batch(is_last=index == len(pieces) - 1):
                    logprobs, output = self._learn_from(piece, old, denominators)
                if old is None:
                    old_logprobs.append(logprobs)
                metrics.append(output.metrics | {"loss": self._part_of_sum(output.loss, is_first=index == 0)})
            grad_norm, rate = self.optimizer.step(step=step)
        with peer_errors():
            reduced = reduce_metrics(merge_metrics(metrics))
        return {**metric_values(reduced), "grad_norm": grad_norm, "learning_rate": rate}

    def _learn_from(
        self, piece: Batch, old_logprobs: torch.Tensor | None, denominators: Denominators
    ) -> tuple[torch.Tensor, LossOutput]:
        """Add the gradient of one part of the step; also returns the logprobs [B, T-1] it computed."""
        logprobs, entropies = self._strategy.score(piece.token_ids)
        output = compute_loss(
            LossInputs(
                trainer_logprobs=logprobs,
                old_logprobs=old_logprobs,
                rollout_logprobs=piece.rollout_logprobs,
                advantages=piece.advantages,
                loss_mask=piece.loss_mask,
                entropies=entropies,
            ),
            options=self._options,
            denominators=denominators,
        )
        self._strategy.backward(output.loss)
        return logprobs.detach(), output

    def _part_of_sum(self, loss: torch.Tensor, *, is_first: bool) -> Metric:
        """The loss of a step is the sum over its parts and the mean over iterations: count one part."""
        is_counted = is_first and self._ranks.rank == 0
        return Metric(kind="mean", total=loss.detach(), count=loss.new_tensor(float(is_counted)))


def loss_options(algorithm: AlgorithmSpec) -> LossOptions:
    """The loss a spec asks for."""
    return LossOptions(
        loss_type=algorithm.loss_type.value,
        clip_low=algorithm.clip_low,
        clip_high=algorithm.clip_high,
        importance_correction=_importance_correction(algorithm.importance_correction),
    )


def _importance_correction(spec: ImportanceCorrectionSpec) -> ImportanceCorrection | None:
    if spec.mode == ImportanceCorrectionMode.NONE:
        return None
    return ImportanceCorrection(level="token", bounding=spec.mode.value, floor=spec.floor, cap=spec.cap)

"""One training phase: a batch in, updated weights and metrics out. The same on every rank."""

from enum import StrEnum
from typing import Any

import torch

from grpo_api.v1alpha1.spec import AlgorithmSpec, ImportanceCorrectionMode, ImportanceCorrectionSpec
from grpo_runtime.algorithm.importance_correction import ImportanceCorrection
from grpo_runtime.algorithm.losses import compute_loss
from grpo_runtime.algorithm.metrics import Metric, Metrics, merge_metrics, metric_values, reduce_metrics
from grpo_runtime.algorithm.registry import exposed_options
from grpo_runtime.algorithm.types import Denominators, LossInputs, LossOptions, LossOutput
from grpo_runtime.trainer.batch import Batch
from grpo_runtime.trainer.distributed import Ranks, peer_errors
from grpo_runtime.trainer.step_parts import divide_step
from grpo_runtime.trainer.strategy.interface import Strategy


class Learner:
    """Updates the policy from batches of rollouts."""

    def __init__(
        self,
        strategy: Strategy,
        algorithm: AlgorithmSpec,
        *,
        micro_batch_tokens: int,
        ranks: Ranks,
        is_packed: bool = False,
    ) -> None:
        """`is_packed` as the policy is."""
        self._strategy = strategy
        self._micro_batch_tokens = micro_batch_tokens
        self._is_packed = is_packed
        self._ranks = ranks
        self.num_updates = 0
        """How many steps it has made."""
        self._num_iterations = algorithm.num_iterations
        self._options = loss_options(algorithm)

    def update(self, batch: Batch, *, step: int) -> dict[str, float]:
        """Train `numIterations` times on the whole `batch`, of which this rank computes its part.

        Returns the metrics of all ranks together, by TRL's names. `step` (from 0) sets the learning rate.
        """
        parts = divide_step(
            batch,
            options=self._options,
            rank=self._ranks.rank,
            num_ranks=self._ranks.world_size,
            budget=self._micro_batch_tokens,
            is_packed=self._is_packed,
        )
        pieces = [piece.to(self._strategy.device) for piece in parts.micro_batches]
        # of the weights that sampled the batch; the first iteration computes them
        old_logprobs: list[torch.Tensor] = []
        metrics: list[Metrics] = []
        for _ in range(self._num_iterations):
            for index, piece in enumerate(pieces):
                old = old_logprobs[index] if index < len(old_logprobs) else None
                with self._strategy.micro_batch(is_last=index == len(pieces) - 1):
                    logprobs, output = self._learn_from(piece, old, parts.denominators)
                if old is None:
                    old_logprobs.append(logprobs)
                metrics.append(output.metrics | {"loss": self._part_of_sum(output.loss, is_first=index == 0)})
            grad_norm, rate = self._strategy.optimizer_step(step=step)
        self.num_updates += 1
        with peer_errors():
            reduced = reduce_metrics(merge_metrics(metrics))
        return {**metric_values(reduced), **parts.metrics, "grad_norm": grad_norm, "learning_rate": rate}

    def _learn_from(
        self, piece: Batch, old_logprobs: torch.Tensor | None, denominators: Denominators
    ) -> tuple[torch.Tensor, LossOutput]:
        """Add the gradient of one part of the step; also returns the logprobs [B, T-1] it computed."""
        logprobs, entropies = self._strategy.score(piece.token_ids, piece.loss_mask)
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
    """The loss a spec asks for: every option that a job can set is the field of `algorithm` with its name."""
    names = exposed_options(LossOptions)
    return LossOptions(**{name: _loss_option(getattr(algorithm, name)) for name in names})


def _loss_option(value: Any) -> Any:
    """A value of the spec as the algorithm takes it."""
    if isinstance(value, ImportanceCorrectionSpec):
        return _importance_correction(value)
    return value.value if isinstance(value, StrEnum) else value


def _importance_correction(spec: ImportanceCorrectionSpec) -> ImportanceCorrection | None:
    if spec.mode == ImportanceCorrectionMode.NONE:
        return None
    return ImportanceCorrection(mode=spec.mode.value, floor=spec.floor, cap=spec.cap)

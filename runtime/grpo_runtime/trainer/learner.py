"""One training phase: a batch in, updated weights and metrics out. The same on every rank.

What the learner remembers from one step to the next, beside weights and optimizer, is its `LearnerState`.
"""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import torch

from grpo_api.contract.run_config import ResolvedAlgorithm
from grpo_runtime.algorithm.entropy_bonus import EntropyBonus
from grpo_runtime.algorithm.losses import compute_loss
from grpo_runtime.algorithm.metrics import Metric, Metrics, merge_metrics, metric_values, reduce_metrics
from grpo_runtime.algorithm.top_entropy import top_entropy_threshold
from grpo_runtime.algorithm.types import Denominators, LossInputs, LossOutput
from grpo_runtime.errors import UserError
from grpo_runtime.model.repeatable import repeatable_sums
from grpo_runtime.trainer.algorithm_options import entropy_control, loss_options
from grpo_runtime.trainer.batch import Batch
from grpo_runtime.trainer.distributed import Ranks, peer_errors
from grpo_runtime.trainer.micro_batches import StepParts, UpdateParts, divide_groups, divide_step
from grpo_runtime.trainer.reference import Reference
from grpo_runtime.trainer.strategy.interface import Strategy

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LearnerState:
    """Where the learner stands at a step boundary: the same on every rank, and a part of a checkpoint."""

    skipped_steps: int = 0
    """Steps in a row, up to the last one, in which no gradient was finite."""
    entropy_coefficient: float = 0.0
    """Coefficient of the entropy bonus, where it follows a target."""
    is_entropy_low: bool = False
    """Whether the entropy was at or below the target in the last step. Before the first it is not known."""


@dataclass(frozen=True)
class _Update:
    """What this rank computes of an update, on its device, and logprobs [B, T-1] for each of the pieces."""

    pieces: Sequence[Batch]
    denominators: Denominators
    ref_logprobs: Sequence[torch.Tensor | None]
    """Logprobs of the reference policy, if there is one."""
    old_logprobs: list[torch.Tensor | None]
    """Logprobs of the weights before the step's first update; None until that has computed them."""


class Learner:
    """Updates the policy from batches of rollouts."""

    def __init__(
        self,
        strategy: Strategy,
        algorithm: ResolvedAlgorithm,
        *,
        micro_batch_tokens: int,
        ranks: Ranks,
        reference: Reference | None = None,
        max_completion_length: int | None = None,
        is_packed: bool = False,
        state: LearnerState | None = None,
    ) -> None:
        """`reference` is for `algorithm.kl`; `max_completion_length`, in tokens, for lossType dr_grpo;
        `is_packed` as the policy is; `state` is that of a checkpoint."""
        self._strategy = strategy
        self._micro_batch_tokens = micro_batch_tokens
        self._is_packed = is_packed
        self._ranks = ranks
        self.num_steps = 0
        """How many steps it has made."""
        self._reference = reference
        self.state = state or first_state(algorithm)
        """What is to be in a checkpoint."""
        self._algorithm = algorithm
        self._num_iterations = algorithm.num_iterations
        self._max_non_finite_steps = algorithm.max_non_finite_steps
        self._options = loss_options(algorithm, max_completion_length=max_completion_length)
        self._entropy_control = entropy_control(algorithm)

    def update(self, batch: Batch, *, step: int) -> dict[str, float]:
        """Train `numIterations` times on all minibatches of `batch`, of which this rank computes its part.

        Returns the metrics of all ranks together, by TRL's names. `step` (from 0) sets the learning rate.
        Raises UserError when a gradient was not finite in too many steps in a row.
        """
        with repeatable_sums():
            return self._update(batch, step=step)

    def _update(self, batch: Batch, *, step: int) -> dict[str, float]:
        self._set_entropy_bonus()
        parts = self._divide(batch, step=step)
        updates = [self._prepare(update, is_first=index == 0) for index, update in enumerate(parts.updates)]
        metrics: list[Metrics] = []
        grad_norms: list[float] = []
        for _ in range(self._num_iterations):
            for update in updates:
                metrics += self._add_gradients(update)
                self._ranks.position.at("updates the weights")
                grad_norm, rate = self._strategy.optimizer_step(step=step)
                grad_norms.append(grad_norm)
        if self._reference is not None:
            self._ranks.position.at("updates the reference policy", work=1)
            self._reference.after_step(step)
        self.num_steps += 1
        self._ranks.position.at("adds up the metrics of all ranks", work=1)
        with peer_errors():
            reduced = reduce_metrics(merge_metrics(metrics))
        values = metric_values(reduced) | self._count_skipped(grad_norms, step=step)
        if self._options.entropy is not None:
            values["entropy_coef"] = self._options.entropy.coefficient
            self._follow_entropy(values.get("entropy"))
        return {**values, **parts.metrics, "learning_rate": rate}

    def _divide(self, batch: Batch, *, step: int) -> StepParts:
        minibatches = divide_groups(
            batch.group_sizes,
            num_minibatches=self._algorithm.minibatches,
            run_seed=self._algorithm.seed,
            step=step,
        )
        return divide_step(
            batch,
            options=self._options,
            rank=self._ranks.rank,
            num_ranks=self._ranks.world_size,
            budget=self._micro_batch_tokens,
            is_packed=self._is_packed,
            minibatches=[batch.rows_of(samples) for samples in minibatches],
        )

    def _prepare(self, parts: UpdateParts, *, is_first: bool) -> "_Update":
        """Bring an update to the device, with what earlier policies give its tokens."""
        pieces = [piece.to(self._strategy.device) for piece in parts.micro_batches]
        ref_logprobs: list[torch.Tensor | None] = [None] * len(pieces)
        if self._reference is not None:
            told = self._told(pieces, "computes logprobs of the reference")
            ref_logprobs = [self._reference.logprobs(piece.token_ids, piece.loss_mask) for piece in told]
        old_logprobs: list[torch.Tensor | None] = [None] * len(pieces)
        if not is_first:  # nothing has changed the weights before the first, which finds them on its way
            told = self._told(pieces, "computes logprobs of the old policy")
            old_logprobs = [self._strategy.score_only(piece.token_ids, piece.loss_mask)[0] for piece in told]
        return _Update(pieces, parts.denominators, ref_logprobs, old_logprobs)

    def _add_gradients(self, update: "_Update") -> list[Metrics]:
        """Compute the gradient of an update, one micro-batch after the other."""
        metrics: list[Metrics] = []
        threshold = self._entropy_threshold(update.pieces)
        for index, piece in enumerate(self._told(update.pieces, "computes gradients")):
            with self._strategy.micro_batch(is_last=index == len(update.pieces) - 1):
                logprobs, output = self._learn_from(
                    piece,
                    update.denominators,
                    old=update.old_logprobs[index],
                    ref=update.ref_logprobs[index],
                    threshold=threshold,
                )
            if update.old_logprobs[index] is None:
                update.old_logprobs[index] = logprobs
            metrics.append(output.metrics | {"loss": self._part_of_sum(output.loss, is_first=index == 0)})
        return metrics

    def _learn_from(
        self,
        piece: Batch,
        denominators: Denominators,
        *,
        old: torch.Tensor | None,
        ref: torch.Tensor | None,
        threshold: torch.Tensor | None,
    ) -> tuple[torch.Tensor, LossOutput]:
        """Add the gradient of one part of the step; also returns the logprobs [B, T-1] it computed."""
        logprobs, entropies = self._strategy.score(piece.token_ids, piece.loss_mask)
        output = compute_loss(
            LossInputs(
                trainer_logprobs=logprobs,
                old_logprobs=old,
                rollout_logprobs=piece.rollout_logprobs,
                advantages=piece.advantages,
                loss_mask=piece.loss_mask,
                ref_logprobs=ref,
                entropies=entropies,
                entropy_threshold=threshold,
                is_current=piece.is_current,
                episode_sizes=piece.episode_sizes,
            ),
            options=self._options,
            denominators=denominators,
        )
        self._strategy.backward(output.loss)
        return logprobs.detach(), output

    def _part_of_sum(self, loss: torch.Tensor, *, is_first: bool) -> Metric:
        """The loss is the sum over the parts of an update and the mean over updates: count one part."""
        is_counted = is_first and self._ranks.rank == 0
        return Metric(kind="mean", total=loss.detach(), count=loss.new_tensor(float(is_counted)))

    def _entropy_threshold(self, pieces: Sequence[Batch]) -> torch.Tensor | None:
        """Scalar: that of an update's tokens of all ranks under the weights as they are; None: all count.

        It must be known before the first micro-batch, so it takes a forward pass of its own.
        """
        quantile = self._options.top_entropy_quantile
        if quantile >= 1:
            return None
        found = []
        for piece in self._told(pieces, "computes entropies"):
            _, entropies = self._strategy.score_only(piece.token_ids, piece.loss_mask)
            found.append(entropies[piece.loss_mask])
        entropies = self._ranks.all_of(torch.cat(found))
        return top_entropy_threshold(
            entropies, mask=torch.ones_like(entropies, dtype=torch.bool), quantile=quantile
        )

    def _told(self, pieces: Sequence[Batch], what: str) -> Iterator[Batch]:
        """The micro-batches, while this rank reports at which of them it is."""
        for index, piece in enumerate(pieces):
            self._ranks.position.at(what, f"micro-batch {index + 1} of {len(pieces)}", work=index > 0)
            yield piece

    def _set_entropy_bonus(self) -> None:
        """Give the loss the coefficient of this step, where it follows a target."""
        if self._entropy_control is None:
            return
        coefficient = self.state.entropy_coefficient if self.state.is_entropy_low else 0.0
        self._options = replace(self._options, entropy=EntropyBonus(coefficient=coefficient))

    def _follow_entropy(self, entropy: float | None) -> None:
        """Move the coefficient by the mean entropy of all tokens of a step; None says nothing."""
        control = self._entropy_control
        if control is not None and entropy is not None:
            self.state = replace(
                self.state,
                entropy_coefficient=control.coefficient_after(
                    self.state.entropy_coefficient, entropy=entropy
                ),
                is_entropy_low=control.is_low(entropy),
            )

    def _count_skipped(self, grad_norms: Sequence[float], *, step: int) -> dict[str, float]:
        """Metrics of the gradients of a step's updates. Raises UserError when this is the last of the steps
        without any that may follow one another."""
        finite = [norm for norm in grad_norms if math.isfinite(norm)]
        num_skipped = len(grad_norms) - len(finite)
        num_steps = 0 if finite else self.state.skipped_steps + 1
        self.state = replace(self.state, skipped_steps=num_steps)
        if num_skipped and self._ranks.rank == 0:
            logger.warning(
                "step %d: the gradient of %d of %d updates is not finite, so they were left out",
                *(step + 1, num_skipped, len(grad_norms)),
            )
        if num_steps >= self._max_non_finite_steps:
            raise _nothing_finite(num_steps, step=step)
        return {"skipped_updates": float(num_skipped)} | ({"grad_norm": fmean(finite)} if finite else {})


def _nothing_finite(num_steps: int, *, step: int) -> UserError:
    """The error that ends a run in `step` (from 0), after as many steps without an update as may follow one
    another. It is no error to retry: training repeats to the last bit."""
    which = f"gradients of the last {num_steps} steps, up to step {step + 1}, are"
    if num_steps == 1:
        which = f"gradient of step {step + 1} is"
    return UserError(
        f"the {which} not finite (algorithm.maxNonFiniteSteps is {num_steps}): lower "
        "algorithm.optimizer.learningRate, or look for completions with extreme rewards"
    )


def first_state(algorithm: ResolvedAlgorithm) -> LearnerState:
    """Where a run begins."""
    entropy = algorithm.entropy
    return LearnerState(entropy_coefficient=0.0 if entropy is None else entropy.coefficient)


def state_after(
    algorithm: ResolvedAlgorithm, saved: Mapping[str, Any], *, is_of_other_run: bool
) -> LearnerState:
    """Where a run continues from what its checkpoint has of the learner. From the checkpoint of another run,
    which may have had another `algorithm`, only an entropy coefficient is taken that follows a target."""
    first = first_state(algorithm)
    if not is_of_other_run:
        return replace(first, **saved)
    follows_target = algorithm.entropy is not None and algorithm.entropy.target is not None
    coefficient = saved.get("entropy_coefficient", 0.0)
    return replace(first, entropy_coefficient=coefficient) if follows_target and coefficient else first


def shared_state(state: LearnerState, *, ranks: Ranks) -> LearnerState:
    """Rank 0's `state` on every rank, which all call this at the same time."""
    values = torch.tensor([float(value) for value in asdict(state).values()], dtype=torch.float64)
    found = ranks.broadcast(values).tolist()
    kinds = (type(value) for value in asdict(state).values())
    return LearnerState(
        **{name: kind(value) for name, kind, value in zip(asdict(state), kinds, found, strict=True)}
    )

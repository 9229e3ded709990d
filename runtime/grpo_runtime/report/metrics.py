"""Every metric of a step by its name; there is no other list of them.

To add one, give its value and add a row here. Values of completions and of weight syncs are made here, those
of rewards and of the loss in `algorithm`, and others where the trainer puts the metrics of a step together.
Reward functions cannot log a metric under a name that is listed.
"""

import math
import re
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from grpo_runtime.report.phases import ENGINES, PAUSED, RATE, SENT_BYTES, UPDATE_RATIO

if TYPE_CHECKING:  # it imports torch, and a pool of reward functions needs the names alone
    from grpo_runtime.rollouts.group import Group
    from grpo_runtime.rollouts.interface import AgentTurn, Rollout, SyncReport

METRICS = {
    "reward": "mean of the weighted sum of all rewards",
    "reward_std": "its standard deviation over the batch",
    "rewards/NAME/mean": "mean of one reward function",
    "rewards/NAME/std": "its standard deviation",
    "rewards/NAME/failures": "completions to which it gave no reward because it failed",
    "rewards/NAME/failed_calls": "groups that it failed on as a whole",
    "frac_reward_zero_std": (
        "share of completions whose whole group got the same reward: nothing is learned from them"
    ),
    "steps_without_signal/no_reward": (
        "of the newest steps in a row that taught nothing, those in which no completion had a reward; these "
        "three are there only while the newest step taught nothing, and one that is 0 is left out"
    ),
    "steps_without_signal/equal_rewards": (
        "those in which no two completions of a prompt had different rewards, so that all advantages were 0"
    ),
    "steps_without_signal/zero_gradient": "those in which advantages were not 0, but the gradient was",
    "loss": "near 0 on policy by construction: look at the reward",
    "entropy": (
        "of the policy's next token, nats; this and what follows up to `batch/micro_batches`, but for "
        "`grad_norm` and `learning_rate`, is over the tokens that were computed"
    ),
    "grad_norm": "before clipping, mean of the step's updates; left out where none was finite",
    "skipped_updates": (
        "updates of the step that were left out because their gradient was not finite; after "
        "`algorithm.maxNonFiniteSteps` steps in a row without any update the job fails"
    ),
    "learning_rate": "of this step",
    "clip_ratio/low_mean": "share of tokens clipped below",
    "clip_ratio/low_min": "least share in a sequence",
    "clip_ratio/high_mean": "share of tokens clipped above",
    "clip_ratio/high_max": "greatest share in a sequence",
    "clip_ratio/region_mean": "share of tokens clipped at all",
    "cispo_clip_ratio": "share of tokens whose weight is capped, with lossType cispo",
    "vespo/phi_seq_mean": "mean weight of a sequence, with lossType vespo",
    "entropy_coef": (
        "coefficient of the entropy bonus in this step, with `algorithm.entropy`; 0 while the entropy is "
        "above its target"
    ),
    "kl": "estimated divergence from the reference policy, nats a token, with `algorithm.kl`",
    "sampling/sampling_logp_difference/mean": (
        "absolute difference of trainer's and engine's logprobs, nats; this and the greatest are over tokens "
        "sampled with the weights that the step begins with, and are left out where there is none"
    ),
    "sampling/sampling_logp_difference/max": "greatest",
    "sampling/mismatch_kl/k1": (
        "divergence of the trainer, before the step's first update, from the engines that sampled, nats a "
        "token; over all tokens, whatever weights sampled them, estimated as `k1`, which may be negative"
    ),
    "sampling/mismatch_kl/k3": "the same estimated as `k3`, which is never negative",
    "sampling/importance_sampling_ratio/min": (
        "least ratio of trainer to engine probability of a token, after the correction; without one it is "
        "not there"
    ),
    "sampling/importance_sampling_ratio/mean": "its mean",
    "sampling/importance_sampling_ratio/max": "greatest",
    "mask_ratio/geometric_sequences": "share of completions left out, with `algorithm.geometricMask`",
    "mask_ratio/geometric_tokens": "share of tokens in them",
    "mask_ratio/trust_region_low": (
        "share of tokens left out, with `algorithm.trustRegionMask`, because their probability fell too far "
        "below the engine's"
    ),
    "mask_ratio/trust_region_high": "because it rose too far above",
    "batch/micro_batches": (
        "forward and backward passes of each training process for the batch of a step, in each of "
        "`algorithm.numIterations`"
    ),
    "batch/padding_share": "share of the tokens in them that is padding",
    "batch/computed_share": (
        "share of the completion tokens that was computed: a completion of advantage 0 changes no gradient, "
        "so it is left out"
    ),
    "completions/mean_length": "tokens",
    "completions/min_length": "tokens",
    "completions/max_length": "tokens",
    "completions/mean_terminated_length": "of completions that ended by themselves; 0 when none did",
    "completions/min_terminated_length": "likewise",
    "completions/max_terminated_length": "likewise",
    "completions/clipped_ratio": "share of completions cut at `sampling.maxTokens`",
    "completions/crc32": (
        "checksum of all tokens of the step: two runs are the same up to the first step where it differs"
    ),
    "env/NAME/reward": (
        "with `environments`, this and the following of each: mean of `reward` over its episodes that are "
        "trained on"
    ),
    "env/NAME/mean_turns": (
        "calls of an episode that were answered; this and the following up to `failures` are over all "
        "episodes that were finished for the step, also in groups that were filtered or left out"
    ),
    "env/NAME/mean_sequences": (
        "sequences of an episode: 1 where each of its calls goes on from the one before"
    ),
    "env/NAME/turn_tokens": "sampled tokens of a call",
    "env/NAME/turn_seconds": "from a call to its answer",
    "env/NAME/turn_waited_seconds": (
        "those of them in which no engine had the call: engines were busy, or got weights, or in mode "
        "Colocated were still at other calls"
    ),
    "env/NAME/overridden/FIELD": (
        "calls that asked for another value of this field than the job's; those that are 0 are left out"
    ),
    "env/NAME/failures/KIND": (
        "failures in these episodes: of the `policy` (a call that nobody can read), of a `tool`, of the "
        "`environment` (the agent raised, was late or lost its process, and the episode was begun again, or "
        "given up, which counts here, too), and of a `limit`, at which an episode was cut; those that are 0 "
        "are left out"
    ),
    "env/NAME/left_out_in_a_row": (
        "newest groups of an environment, one after the other, that were left out; it is there only while "
        "the newest one was"
    ),
    "agents/given_up_episodes": (
        "with `environments` or `sampling.rolloutFunction`: completions of the step that were given up, "
        "because each of three tries failed; this and the next are left out where they are 0"
    ),
    "agents/left_out_groups": ("groups of which too many were given up, in whose places others were sampled"),
    "dynamic_sampling/rounds": "with `algorithm.dynamicSampling`: how often the step sampled",
    "dynamic_sampling/generated_groups": "groups that it sampled",
    "dynamic_sampling/filtered_groups": (
        "those of them in which all rewards were equal, and which it was not trained on"
    ),
    "dynamic_sampling/generated_reward": (
        "mean reward of all that were sampled; `reward` is of those that are trained on"
    ),
    "async/staleness/mean": (
        "with `async`: mean age of the groups of the step, in steps trained since the weights that sampled "
        "their oldest token"
    ),
    "async/staleness/max": "greatest age",
    "async/groups_by_staleness/NAME": "how many of them are NAME steps old; those that are 0 are left out",
    "async/failed_groups": "groups that could not be sampled, in whose places others were sampled",
    "async/dropped_groups": "groups that were cancelled because they would have become too old",
    "async/queued_groups": "groups that were finished and not trained when the step had taken its own",
    "async/running_groups": "groups that were being sampled or scored then",
    "async/trainer_idle_seconds": (
        "of the step: `time/generate_seconds`, in which the trainer waited for groups, and "
        "`time/sync_seconds`, in which it waited for a weight sync; this and the next five are left out in "
        "a step that has samples from the journal"
    ),
    "async/engine_idle_seconds": (
        "seconds of the step in which an engine that could sample had no request, or was paused: the mean "
        "over engines"
    ),
    "async/engine_idle_share": "the same by `step_time`",
    "async/tokens_per_busy_second": (
        "sampled tokens of the step by the seconds in which the mean engine was not idle: "
        "`tokens_per_second` is by wall clock; left out where they were idle for more than 90 % of the step"
    ),
    "async/recomputed_tokens": (
        "tokens of contexts that engines computed again since the step before, because weights changed "
        "within a completion, or an engine went on with what another one had begun; what a preemption costs "
        "is not among them"
    ),
    "async/preemptions": (
        "completions that vLLM took out of its KV cache since the step before, to make room for others or, "
        "with `pauseMode: Keep` and `kvCache: Recompute`, for new weights; of their contexts it computes "
        "again what the cache has no more"
    ),
    "num_tokens": "prompt and completion tokens of the whole run so far",
    "tokens_per_second": (
        "sampled tokens of the step, also of groups that were filtered out, but not of those that were "
        "dropped or left out, by its whole duration"
    ),
    "step_time": "seconds",
    "time/sync_seconds": (
        "the weight sync before the step; with `async` what the step waits for it: until the one before has "
        "ended, and the weights are copied"
    ),
    "time/generate_seconds": "sampling; with `async` what the step waits for its groups",
    "time/score_seconds": (
        "waiting for rewards after the last completion was finished: groups are scored while others are "
        "generated"
    ),
    "time/train_seconds": "loss, gradients, optimizer",
    "checkpoint/waited_seconds": (
        "what training waited for at a save that was begun since the record before: its copies, and the end "
        "of the save before it"
    ),
    "checkpoint/seconds": (
        "of a save that was committed since the record before: from its first copy to its commit"
    ),
    "time/evaluate_seconds": (
        "the evaluation after the step, with its weight sync; it is no part of `step_time`"
    ),
    "time/digest_seconds": "the digest of the weights for the journal",
    "eval/reward": "mean reward of `dataset.eval` with the weights after the step",
    "eval/failed": (
        "1 where its rewards failed, or no completion could be made, so that the step has no other `eval/` "
        "metric but `eval/given_up_episodes`; training continues. 0 elsewhere"
    ),
    "eval/given_up_episodes": (
        "completions that could not be made, and are in no mean; left out where there is none"
    ),
    "eval/rewards/NAME/mean": "the same of one function",
    "eval/env/NAME/reward": "mean reward of its episodes of one environment",
    "eval/completions/mean_length": "length of its completions in tokens",
    "eval/completions/clipped_ratio": "share of them that were cut at `sampling.maxTokens`",
    "dataset/overlong_prompts": (
        "prompts left out of the run because they are longer than `engine.maxModelLen` minus "
        "`sampling.maxTokens`; the log names the first"
    ),
    "dataset/unreadable_answers": (
        "prompts left out of the run because a built-in reward, such as `math_verify`, cannot read their "
        "answer and would give 0 to the answer itself; the log names the first ones"
    ),
    "journal/replayed_samples": (
        "samples of the step that were taken from the journal and not generated; such a step has no "
        "`tokens_per_second`, and without any other sample no `sync/`"
    ),
    "journal/weights_checksum": (
        "first 32 bits of the digest of the weights after the step: two runs are the same up to the first "
        "step where it differs"
    ),
    "journal/digest_differs": (
        "in a step that was trained before: 1 when its weights are not those of before, else 0"
    ),
    "sync/pack_seconds": "copying the weights into buffers",
    "sync/write_seconds": (
        "with Disk: what engines waited for the version to be in the store; they are not paused meanwhile"
    ),
    "sync/drain_seconds": "with `async.pauseMode: Wait`: finishing what the engine was sampling",
    "sync/pause_seconds": "each phase: the slowest engine's",
    "sync/init_seconds": "connecting, on the first sync of an engine",
    "sync/start_seconds": "opening the update",
    "sync/transfer_seconds": (
        "all bytes there and checked; in mode Colocated only names and shapes, because no bytes are sent, "
        "unless `engine.process` is `Own`"
    ),
    "sync/finish_seconds": "loading them into the model",
    "sync/resume_seconds": "letting the engine continue",
    "sync/verify_seconds": "the probe prompt",
    "sync/admit_seconds": "taking the engine into service with the new weights",
    "sync/wake_weights_seconds": "in mode Colocated: taking the memory of the weights again",
    "sync/wake_kv_cache_seconds": "in mode Colocated: the same for the KV cache",
    "sync/paused_seconds": (
        "from the call that pauses an engine to its answer that it has resumed: the slowest engine's; not in "
        "mode Colocated, where engines have no work then"
    ),
    "sync/bytes": "size of the weights",
    "sync/sent_bytes": (
        "what left the trainer, with the tag of each stream: once for each group of engines by Gloo, however "
        "many are in it, once for each engine by SharedMemory, nothing by InProcess; broken transfers count "
        "as far as they came"
    ),
    "sync/update_bytes": (
        "with `weightSync.sparse`: what changed, with its index and the tag; the size of all weights where "
        "they are sent"
    ),
    "sync/update_ratio": (
        "the same by `sync/bytes`: 1 where all weights are sent, in float32 at nearly every step"
    ),
    "sync/bytes_per_second": (
        "rate into the slowest engine: `sync/bytes` by `sync/transfer_seconds`; left out where nothing was "
        "sent"
    ),
    "sync/engines": "engines that got them",
    "sync/failed_engines": "engines that did not, and left the fleet",
    "sync/max_probe_error": (
        "mean difference to the trainer's logprobs of the probe, nats a token, of the engine where it is "
        "greatest"
    ),
    "step": "finished steps (Prometheus only)",
    "total_steps": "steps of the run (Prometheus only)",
    "attempt": "the attempt that made the step, counted from 1 (Prometheus only)",
    "engines/desired": "engines the job asks for now, as the operator says (Prometheus only)",
    "engines/known": "engines that have answered and are not lost (Prometheus only)",
    "engines/current": "engines with the newest, verified weights (Prometheus only)",
    "engines/hung": "engines that hang (Prometheus only)",
}
"""By name, what it means: `make generate` writes them into docs/reference.md. NAME is any reward function
or environment, FIELD one of a call, and KIND an EpisodeFailure."""
_PATTERNS = (*METRICS, "sync/PHASE_seconds", "time")
_OWN = re.compile("|".join(re.sub("NAME|PHASE|FIELD|KIND", "[^/]+", name) for name in _PATTERNS))


def is_own_metric(name: str) -> bool:
    """Whether the run itself reports a metric of that name, in some steps at least."""
    return _OWN.fullmatch(name) is not None


def completion_metrics(rollouts: "Sequence[Rollout]") -> dict[str, float]:
    """Lengths in sampled tokens of all completions and of the terminated ones, and the ratio of those that
    were clipped. An episode of several sequences is one completion, which ends as `Rollout.last` does.

    As in TRL the terminated lengths are 0 when no completion is terminated. `completions/crc32` is a checksum
    over all tokens in order: two runs were the same up to the first step in which it differs.
    """
    lengths = [rollout.num_sampled for rollout in rollouts]
    terminated = [rollout.num_sampled for rollout in rollouts if rollout.last.is_terminated]
    return {
        **_statistics("completions/{}_length", lengths),
        **_statistics("completions/{}_terminated_length", terminated or [0]),
        "completions/clipped_ratio": 1.0 - len(terminated) / len(rollouts),
        "completions/crc32": float(_checksum(rollouts)),
    }


def environment_metrics(
    groups: "Iterable[Group]", *, environment: "Callable[[Group], str]"
) -> dict[str, float]:
    """What each environment has made of these groups, by the name that `environment` gives for one: of its
    episodes that are finished, and the failures of those that were given up, too."""
    of_environments: dict[str, list[Group]] = {}
    for group in groups:
        of_environments.setdefault(environment(group), []).append(group)
    metrics: dict[str, float] = {}
    for name, found in sorted(of_environments.items()):
        episodes = [rollout for group in found for rollout in group.finished]
        calls = [rollout.calls for rollout in episodes if rollout.calls is not None]
        overridden = sum((Counter(of.overridden) for of in calls), Counter[str]())
        counts = [of.failures for of in calls]
        counts += [given_up.failures for group in found for given_up in group.given_up]
        failures = sum(map(Counter, counts), Counter[str]())
        values = {
            **_turn_metrics([turn for of in calls for turn in of.turns], episodes),
            **{f"overridden/{field}": float(num) for field, num in sorted(overridden.items())},
            **{f"failures/{kind}": float(num) for kind, num in sorted(failures.items())},
        }
        metrics |= {f"env/{name}/{what}": value for what, value in values.items()}
    return metrics


def _turn_metrics(turns: "Sequence[AgentTurn]", episodes: "Sequence[Rollout]") -> dict[str, float]:
    """Those of all turns of these episodes; empty where none was finished."""
    if not turns:
        return {}
    return {
        "mean_turns": len(turns) / len(episodes),
        "mean_sequences": sum(len(rollout.sequences) for rollout in episodes) / len(episodes),
        "turn_tokens": sum(turn.end - turn.start for turn in turns) / len(turns),
        "turn_seconds": sum(turn.seconds for turn in turns) / len(turns),
        "turn_waited_seconds": sum(turn.waited_seconds for turn in turns) / len(turns),
    }


def environment_rewards(rollouts: "Sequence[Rollout]", rewards: Sequence[float]) -> dict[str, float]:
    """Mean reward of the episodes of each environment. `rewards` has that of each rollout, NaN for none; an
    environment of which no episode has one is left out."""
    given: dict[str, list[float]] = {}
    for rollout, reward in zip(rollouts, rewards, strict=True):
        if rollout.calls is not None and not math.isnan(reward):
            given.setdefault(rollout.calls.environment, []).append(reward)
    return {f"env/{name}/reward": sum(found) / len(found) for name, found in sorted(given.items())}


def sync_metrics(sync: "SyncReport") -> dict[str, float]:
    """Seconds of each phase and of the pause for the slowest engine, bytes, engines, and the largest error of
    the probe.

    The rate is that at which weights reached the slowest engine: their size by the seconds of `transfer`. It
    is left out where nothing was sent. With `weightSync.sparse` there are also the bytes of what changed,
    with its index, and their share in all weights: 1 where all are sent.
    """
    metrics = {f"sync/{phase}_seconds": seconds for phase, seconds in sync.phase_seconds.items()}
    metrics |= {
        "sync/bytes": float(sync.num_bytes),
        SENT_BYTES: float(sync.num_bytes_sent),
        ENGINES: float(len(sync.synced)),
        "sync/failed_engines": float(len(sync.failed)),
        "sync/max_probe_error": sync.max_probe_error,
    }
    if sync.num_update_bytes is not None and sync.num_bytes > 0:
        metrics["sync/update_bytes"] = float(sync.num_update_bytes)
        metrics[UPDATE_RATIO] = min(1.0, sync.num_update_bytes / sync.num_bytes)
    transfer_seconds = sync.phase_seconds.get("transfer", 0.0)
    if sync.num_bytes_sent > 0 and transfer_seconds > 0:
        metrics[RATE] = sync.num_bytes / transfer_seconds
    if sync.paused_seconds is not None:
        metrics[PAUSED] = sync.paused_seconds
    return metrics


def count_tokens(rollouts: "Sequence[Rollout]") -> tuple[int, int]:
    """The number of tokens of all prompts, each as often as it was completed, and of all completions; those
    of every sequence of an episode."""
    sequences = [sequence for rollout in rollouts for sequence in rollout.sequences]
    prompts = sum(len(sequence.prompt_ids) for sequence in sequences)
    return prompts, sum(len(sequence.completion_ids) for sequence in sequences)


def _checksum(rollouts: "Sequence[Rollout]") -> int:
    checksum = 0
    for sequence in (sequence for rollout in rollouts for sequence in rollout.sequences):
        tokens = array("q", (len(sequence.completion_ids), *sequence.completion_ids))
        checksum = zlib.crc32(tokens.tobytes(), checksum)
    return checksum


def _statistics(pattern: str, lengths: Sequence[int]) -> dict[str, float]:
    return {
        pattern.format("mean"): sum(lengths) / len(lengths),
        pattern.format("min"): float(min(lengths)),
        pattern.format("max"): float(max(lengths)),
    }

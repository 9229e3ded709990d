"""The names of the run's own metrics: a reward function that logs a metric needs another name.
docs/reference.md says what they mean."""

import re

OWN_METRICS = (
    *("reward", "reward_std", "rewards/NAME/mean", "rewards/NAME/std"),
    *("rewards/NAME/failures", "rewards/NAME/failed_calls", "frac_reward_zero_std"),
    *("loss", "entropy", "entropy_coef", "kl", "grad_norm", "learning_rate", "skipped_updates"),
    *("clip_ratio/low_mean", "clip_ratio/low_min", "clip_ratio/high_mean", "clip_ratio/high_max"),
    *("clip_ratio/region_mean", "cispo_clip_ratio", "vespo/phi_seq_mean"),
    *("sampling/sampling_logp_difference/mean", "sampling/sampling_logp_difference/max"),
    *("sampling/importance_sampling_ratio/min", "sampling/importance_sampling_ratio/mean"),
    "sampling/importance_sampling_ratio/max",
    *("batch/micro_batches", "batch/padding_share", "batch/computed_share"),
    *("completions/mean_length", "completions/min_length", "completions/max_length"),
    *("completions/mean_terminated_length", "completions/min_terminated_length"),
    *("completions/max_terminated_length", "completions/clipped_ratio", "completions/crc32"),
    *("dynamic_sampling/rounds", "dynamic_sampling/generated_groups", "dynamic_sampling/dropped_groups"),
    *("dynamic_sampling/generated_reward", "dataset/overlong_prompts", "dataset/unreadable_answers"),
    *("steps_without_signal/no_reward", "steps_without_signal/equal_rewards"),
    "steps_without_signal/zero_gradient",
    *("num_tokens", "tokens_per_second", "step", "attempt", "time", "step_time"),
    *("time/sync_seconds", "time/generate_seconds", "time/score_seconds", "time/train_seconds"),
    *("time/evaluate_seconds", "time/digest_seconds", "checkpoint/waited_seconds", "checkpoint/seconds"),
    *("eval/reward", "eval/failed", "eval/rewards/NAME/mean", "eval/completions/mean_length"),
    "eval/completions/clipped_ratio",
    *("journal/replayed_samples", "journal/weights_checksum", "journal/digest_differs"),
    *("sync/PHASE_seconds", "sync/bytes", "sync/sent_bytes", "sync/update_bytes", "sync/update_ratio"),
    *("sync/gigabytes_per_second", "sync/engines", "sync/failed_engines", "sync/max_probe_error"),
    *("engines/desired", "engines/known", "engines/current", "engines/frozen"),
)
"""NAME is any reward function, PHASE any phase of a weight sync."""
_OWN = re.compile("|".join(re.sub("NAME|PHASE", "[^/]+", name) for name in OWN_METRICS))


def is_own_metric(name: str) -> bool:
    """Whether the run itself reports a metric of that name, in some steps at least."""
    return _OWN.fullmatch(name) is not None

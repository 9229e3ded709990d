"""The page of a run, from the files in its output directory."""

import statistics
from collections.abc import Sequence
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, StrictUndefined

from grpo_api.contract.learning_signal import StepsWithoutSignal
from grpo_api.contract.left_out import LeftOutEnvironment, left_out_message
from grpo_api.contract.run_config import RunConfig
from grpo_api.v1alpha1.spec import Mode
from grpo_api.v1alpha1.status import ConditionType
from grpo_runtime.errors import UserError
from grpo_runtime.report.charts import WHO_WAITED, curves, library, sections_for
from grpo_runtime.report.metrics_file import METRICS_FILE, MetricsRecord, read_metrics
from grpo_runtime.report.overlap import (
    ENGINE_IDLE,
    TRAINER_IDLE,
    better_overlapped_split,
    describe_waits,
    measured,
    overlap,
    pictured,
)
from grpo_runtime.report.phases import (
    Split,
    StepSeconds,
    better_split,
    describe_syncs,
    idle_seconds,
    step_seconds,
)
from grpo_runtime.report.run_file import read_run_file
from grpo_runtime.report.samples import (
    COMPLETIONS_FOLDER,
    EVALUATIONS_FOLDER,
    Sample,
    read_groups,
    steps_with_samples,
)
from grpo_runtime.storage.files import write_atomically

PAGE_FILE = "report.html"
_NUM_LAST = 10
"""Steps whose mean reward stands for the end of the run."""
_NUM_GROUPS = 4
"""Groups of completions on the page: those whose rewards differ most."""


def write_page(output_dir: Path, *, into: Path | None = None) -> Path:
    """Write the page of the run in `output_dir` to the file `into`, by default `report.html` beside its
    metrics, and return where it is.

    Raises UserError when no step is finished or when the directory has no RunConfig.
    """
    path = into or output_dir / PAGE_FILE
    write_atomically(path, render_page(output_dir))
    return path


def render_page(output_dir: Path) -> str:
    """The page as HTML. Raises as `write_page` does."""
    metrics = output_dir / METRICS_FILE
    records = read_metrics(metrics) if metrics.exists() else []
    if not records:
        raise UserError(f"no step is finished in {output_dir}, which should be the output directory of a job")
    run = read_run_file(output_dir)
    present = sorted({name for record in records for name in record.values})
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string((files(__package__) / "page.html").read_text())
    return template.render(
        name=f"{run.job.namespace}/{run.job.name}",
        facts=_facts(run, records),
        warnings=_warnings(run, records[-1]),
        sections=[
            (section.title, [curves(chart, records, present=present) for chart in section.charts])
            for section in sections_for(present)
        ],
        waits=_waits(run, records),
        time=_time(run, records),
        samples=_samples(output_dir, folder=COMPLETIONS_FOLDER),
        evaluated=_samples(output_dir, folder=EVALUATIONS_FOLDER),
        configuration=yaml.safe_dump(run.to_object(), sort_keys=False, allow_unicode=True),
        library=library(),
    )


def _facts(run: RunConfig, records: Sequence[MetricsRecord]) -> list[tuple[str, str]]:
    """What a reader wants to know first."""
    rewards = [record.values["reward"] for record in records if "reward" in record.values]
    newest = records[-1]
    seconds = sum(record.values.get("step_time", 0.0) for record in records)
    facts = [("steps", f"{newest.step} of {run.total_steps}")]
    if rewards:
        facts.append(
            (f"reward, mean of the last {_NUM_LAST}", f"{statistics.mean(rewards[-_NUM_LAST:]):.4f}")
        )
        facts.append(("best reward of a step", f"{max(rewards):.4f}"))
    facts += [
        ("time in steps", str(timedelta(seconds=round(seconds)))),
        ("attempts", str(newest.attempt)),
        ("tokens", f"{int(newest.values.get('num_tokens', 0)):,}"),
        ("model", run.model.source),
        ("dataset", run.dataset.source),
        ("mode", run.mode.value),
        ("strategy", f"{run.strategy.value} over {run.topology.world_size}"),
        ("loss", run.algorithm.loss_type.value),
    ]
    return facts


def _warnings(run: RunConfig, newest: MetricsRecord) -> list[str]:
    """What was wrong in the newest steps."""
    names = [reward.name for reward in run.rewards]
    found = StepsWithoutSignal.of_metrics(newest.values, step=newest.step, rewards=names)
    warnings = []
    if found is not None and found.is_reported(total_steps=run.total_steps):
        warnings.append(f"{ConditionType.NO_LEARNING_SIGNAL}: {found.message}")
    if left_out := LeftOutEnvironment.of_metrics(newest.values):
        warnings.append(f"{ConditionType.ENVIRONMENT_FAILING}: {left_out_message(left_out)}")
    return warnings


def _time(run: RunConfig, records: Sequence[MetricsRecord]) -> dict[str, Any]:
    """Medians of the phases of a step, and of a step that does not sample ahead who waits for whom, and what
    would be better."""
    values = [record.values for record in records]
    found = step_seconds(values)
    if found is None:
        return {}
    sentences = [describe_syncs(values)]
    idle: dict[str, float] = {}
    if run.asynchronous is not None:
        idle = _measured_idle_seconds(records)
    elif run.mode is Mode.DISAGGREGATED:
        idle = idle_seconds(found)
        sentences.append(_split_sentence(run, found))
    return {
        "step": found.step,
        "phases": [(phase, seconds, seconds / found.step) for phase, seconds in found.phases.items()],
        "idle": [(who, seconds, seconds / found.step) for who, seconds in idle.items()],
        "sentences": [sentence for sentence in sentences if sentence],
    }


def _measured_idle_seconds(records: Sequence[MetricsRecord]) -> dict[str, float]:
    found = measured(records)
    return {
        who: statistics.median(record.values[metric] for record in found)
        for who, metric in (("trainer", TRAINER_IDLE), ("engines", ENGINE_IDLE))
        if found
    }


def _waits(run: RunConfig, records: Sequence[MetricsRecord]) -> dict[str, Any]:
    """In asynchronous training: the picture of who waits for whom, and the split that it suggests."""
    steps = measured(records)
    if run.asynchronous is None or not steps:
        return {}
    found = overlap([record.values for record in steps])
    num_engines = _num_engines(run, step_seconds([record.values for record in records]))
    num_ranks, gpus = run.topology.world_size, run.engine.num_workers
    sentences = [describe_waits(found, num_ranks=num_ranks, num_engines=num_engines)]
    better = better_overlapped_split(
        found, num_ranks=num_ranks, num_engines=num_engines, gpus_per_engine=gpus
    )
    if better is not None:
        sentences.append(_compare(Split(num_ranks, num_engines, found.step_seconds), better, gpus))
    return {
        "charts": [curves(chart, pictured(steps), present=list(found.shares)) for chart in WHO_WAITED],
        "sentence": " ".join(sentences) if sentences[0] else "",
    }


def _num_engines(run: RunConfig, found: StepSeconds | None) -> int:
    return (found and found.num_engines) or run.topology.rollout_replicas


def _split_sentence(run: RunConfig, found: StepSeconds) -> str:
    num_ranks, num_engines = run.topology.world_size, _num_engines(run, found)
    gpus = run.engine.num_workers
    better = better_split(found, num_ranks=num_ranks, num_engines=num_engines, gpus_per_engine=gpus)
    now = Split(num_ranks, num_engines, found.step)
    if better is None:
        return f"{_describe(now, gpus)} is about the best split of these GPUs."
    return _compare(now, better, gpus)


def _compare(now: Split, better: Split, gpus_per_engine: int) -> str:
    return (
        f"{_describe(now, gpus_per_engine)} takes {now.step_seconds:.3g} s a step. "
        f"{_describe(better, gpus_per_engine)} would take at best {better.step_seconds:.3g} s, if both grow "
        "in proportion."
    )


def _describe(split: Split, gpus_per_engine: int) -> str:
    engines = f"{split.num_engines} engine{'s' if split.num_engines > 1 else ''}"
    of = f" of {gpus_per_engine}" if gpus_per_engine > 1 else ""
    return f"{split.num_ranks} training process{'es' if split.num_ranks > 1 else ''} with {engines}{of}"


def _samples(output_dir: Path, *, folder: str) -> dict[str, Any] | None:
    """The groups of the newest kept step whose rewards differ most, and as many others of which something was
    given up."""
    steps = steps_with_samples(output_dir, folder=folder)
    if not steps:
        return None
    groups = read_groups(output_dir, step=steps[-1], folder=folder)
    groups.sort(key=_spread, reverse=True)
    shown = groups[:_NUM_GROUPS]
    failed = [group for group in groups[_NUM_GROUPS:] if any(sample.given_up for sample in group)]
    shown += failed[:_NUM_GROUPS]
    return {"step": steps[-1], "steps": len(steps), "groups": shown, "has_given_up": bool(failed)}


def _spread(group: Sequence[Sample]) -> float:
    rewards = [sample.reward for sample in group if sample.reward is not None]
    return max(rewards) - min(rewards) if rewards else 0.0

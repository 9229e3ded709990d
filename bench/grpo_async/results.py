"""Runs of a case in turn, each beside its simulation, as a table and as JSON."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from grpo_async.cases import SIMULATED_GOAL, WARM_UP_STEPS, Case, Way
from grpo_async.simulation import Completion, Costs, Simulated, Simulation
from grpo_async.steps import PHASES, Run, speed
from grpo_bench.machine import Circumstances
from grpo_runtime.data.seeds import derive_seed
from grpo_runtime.report.phases import phase_of
from grpo_runtime.rollouts.staleness import StalenessBound

_SYNC, _TRAIN = "time/sync_seconds", "time/train_seconds"
_KL = "sampling/mismatch_kl/k3"
_DROPPED = "async/dropped_groups"
_PAUSED, _DRAINED = "sync/paused_seconds", "sync/drain_seconds"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A run of one way of a case, and what its simulation says."""

    case: Case
    way: Way
    steps: int
    """Of the synchronous run; those that are counted for its speed end with it."""
    run: Run
    simulated: Simulated | None

    @property
    def speed(self) -> float:
        """Steps a second."""
        return speed([step.time for step in self.run.steps], steps=self.steps, warm_up=WARM_UP_STEPS)

    @property
    def share_of_simulated(self) -> float | None:
        """The speed, as a share of that of the simulation."""
        if self.simulated is None:
            return None
        return self.speed / speed(self.simulated.ends, steps=self.steps, warm_up=WARM_UP_STEPS)

    def seconds(self, phase: str) -> float:
        """The mean of a step."""
        return self.run.mean(f"time/{phase}_seconds", after=WARM_UP_STEPS)

    def counted(self, metric: str) -> Sequence[float]:
        """A metric of the steps that are counted for the speed, of those that have it."""
        return self.run.values_of(metric, after=WARM_UP_STEPS, until=self.steps)


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """All runs of a case: the name of a way -> its runs, one for each pair. The synchronous way is the
    first. A ratio is to the run of the same pair that `Case.beside` names."""

    case: Case
    runs: Mapping[str, Sequence[Measured]]
    load_averages: Sequence[float]
    """Of the machine when the case began and after each run: others may use it."""

    @property
    def synchronous(self) -> Sequence[Measured]:
        return next(iter(self.runs.values()))

    def ratios(self, name: str) -> list[float]:
        """How many times as fast as the run beside it each run of a way was."""
        return [one.speed / other.speed for one, other in self._beside(name)]

    def rewards(self, name: str) -> list[float]:
        """The reward of each run of a way when the run beside it has ended, or at its own end where that is
        earlier."""
        return [
            one.run.reward_after(other.run.seconds_until(other.steps)) for one, other in self._beside(name)
        ]

    def _beside(self, name: str) -> Iterable[tuple[Measured, Measured]]:
        runs = self.runs[name]
        return zip(runs, self.runs[self.case.beside(runs[0].way).name], strict=True)

    def misses(self) -> list[str]:
        """A sentence for each goal that is missed."""
        found = []
        for name, runs in self.runs.items():
            goal, ratio = runs[0].way.goal, statistics.median(self.ratios(name))
            if goal is not None and ratio < goal:
                found.append(f"{self.case.name}, {name}: {ratio:.2f} times as fast, and not {goal:g} times")
            shares = [share for one in runs if (share := one.share_of_simulated) is not None]
            is_held = runs[0].way.max_staleness > 0
            if is_held and shares and statistics.median(shares) < SIMULATED_GOAL:
                found.append(
                    f"{self.case.name}, {name}: {statistics.median(shares):.0%} of its simulation, and not "
                    f"{SIMULATED_GOAL:.0%}"
                )
        return found


def simulate(case: Case, way: Way, *, seed: int, costs: Costs, steps: int) -> Simulated:
    """A run of a case without any other cost than these."""
    scripted, latency = case.scripted, case.latency

    def completion(seed: int) -> Completion:
        if scripted is not None:
            return Completion(engine_seconds=scripted.num_tokens(seed) * scripted.seconds_per_token)
        assert latency is not None
        return Completion(tool_seconds=latency.of(seed))

    def completions(ordinal: int) -> list[Completion]:
        step, place = divmod(ordinal, case.prompts_per_step)
        return [
            completion(derive_seed(seed, step=step, prompt_index=place, sample_index=sample))
            for sample in range(case.group_size)
        ]

    return Simulation(
        completions=completions,
        bound=StalenessBound(max_staleness=way.max_staleness, groups_per_step=case.prompts_per_step),
        steps=steps,
        costs=costs,
        num_places=None if scripted is None else scripted.num_places,
    ).run()


def costs_of(case: Case, run: Run) -> Costs:
    """What training and weight syncs cost in a run, as measured in it; a sync of scripted engines costs what
    the case says."""
    train = run.mean(_TRAIN, after=WARM_UP_STEPS)
    if case.scripted is not None:
        return Costs(train=train, sync=case.scripted.sync_seconds, read=0.0)
    read = run.mean(_SYNC, after=WARM_UP_STEPS)
    names = {name for step in run.steps for name in step.values if phase_of(name)}
    whole = sum(run.mean(name, after=WARM_UP_STEPS) for name in names)
    return Costs(train=train, sync=max(read, whole), read=read)


def table(result: CaseResult) -> str:
    """A row for each way, below a line about the case. Columns of which no way has anything are left out."""
    case = result.case
    titles = (
        f"({case.name})",
        *("steps/s", "ratio", "low to high", "goal", "of simulation", "staleness", "dropped", "across"),
        *("KL k3", "median", "drained", "paused", f"{result.synchronous[0].steps} steps", "reward"),
        *("reward then", *PHASES),
    )
    columns = [
        column
        for column in zip(titles, *(_row(result, name) for name in result.runs), strict=True)
        if any(column[1:])
    ]
    widths = [max(map(len, column)) for column in columns]
    lines = [
        f"{case.what}; {case.prompts_per_step} prompts x {case.group_size} completions a step; "
        f"{len(result.synchronous)} pairs; load average {min(result.load_averages):.1f} to "
        f"{max(result.load_averages):.1f}",
        *(
            "  ".join(
                [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
            ).rstrip()
            for row in zip(*columns, strict=True)
        ),
    ]
    return "\n".join(lines)


def _row(result: CaseResult, name: str) -> tuple[str, ...]:
    runs, ratios = result.runs[name], result.ratios(name)
    way = runs[0].way
    has_reward = result.case.scripted is None
    return (
        name,
        f"{_median(one.speed for one in runs):.3g}",
        f"{statistics.median(ratios):.2f}" if way.max_staleness else "",
        f"{min(ratios):.2f} to {max(ratios):.2f}" if way.max_staleness else "",
        f">= {way.goal:g}" if way.goal else "",
        _found((one.share_of_simulated for one in runs), "{:.0%}"),
        f"{_median(one.run.mean('async/staleness/mean', after=WARM_UP_STEPS) for one in runs):.2f}",
        _found((_mean(one.counted(_DROPPED)) or None for one in runs), "{:.2f}"),
        _found((one.run.share_across for one in runs), "{:.0%}"),
        _found((_mean(one.counted(_KL)) for one in runs), "{:.2g}"),
        _found((_median(one.counted(_KL)) for one in runs if one.counted(_KL)), "{:.2g}"),
        _found((_mean(one.counted(_DRAINED)) for one in runs), "{:.3f} s"),
        _found((_mean(one.counted(_PAUSED)) for one in runs), "{:.3f} s") if way.max_staleness else "",
        f"{_median(one.run.seconds_until(one.steps) for one in runs):.1f} s",
        _found((_mean(one.counted("reward")) for one in runs), "{:.3f}") if has_reward else "",
        f"{statistics.median(result.rewards(name)):.3f}" if has_reward else "",
        *(f"{_median(one.seconds(phase) for one in runs):.3f} s" for phase in PHASES),
    )


def _median(values: Iterable[float]) -> float:
    return statistics.median(list(values))


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _found(values: Iterable[float | None], form: str) -> str:
    """The median of those that there are; empty where there are none."""
    found = [value for value in values if value is not None]
    return form.format(statistics.median(found)) if found else ""


def json_line(result: CaseResult, *, circumstances: Circumstances) -> str:
    """The whole result, with the end of every step."""
    case = result.case
    return json.dumps(
        {
            "bench": "async",
            **asdict(circumstances),
            "load_averages": [round(load, 1) for load in result.load_averages],
            "case": case.name,
            "what": case.what,
            "steps": result.synchronous[0].steps,
            "misses": result.misses(),
            "ways": {name: _json_way(result, name) for name in result.runs},
        }
    )


def _json_way(result: CaseResult, name: str) -> dict[str, Any]:
    runs = result.runs[name]
    return {
        "goal": runs[0].way.goal,
        "ratios": result.ratios(name),
        "rewards": result.rewards(name),
        "runs": [
            {
                "steps_per_second": one.speed,
                "share_of_simulated": one.share_of_simulated,
                "costs": asdict(costs_of(one.case, one.run)),
                "ends": [round(step.time - one.run.began, 4) for step in one.run.steps],
                "staleness": [step.values.get("async/staleness/mean", 0.0) for step in one.run.steps],
                "rewards": [step.values["reward"] for step in one.run.steps],
                "seconds": {phase: one.seconds(phase) for phase in PHASES},
                "share_across": one.run.share_across,
                **{metric: list(one.counted(metric)) for metric in (_KL, _DROPPED, _PAUSED, _DRAINED)},
            }
            for one in runs
        ],
    }

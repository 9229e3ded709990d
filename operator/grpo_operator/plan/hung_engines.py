"""Engines that hang, as the trainer reports them, and which of them is replaced. Pure.

Such an engine keeps its GPUs and does no work, and nothing in the cluster ends it as long as its server
answers the kubelet. It may continue by itself, so it is given time; and its successor may hang too, so
pods are not replaced one after the other without pause.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from grpo_api.contract.progress import HungEngine
from grpo_api.judge import engines
from grpo_operator.observe.observed import EngineView, Observed
from grpo_operator.plan.draft import Draft


@dataclass(frozen=True)
class Hung:
    """An engine that is hung, as the trainer reported it."""

    engine: EngineView
    reported: HungEngine

    @property
    def node(self) -> str:
        """The node of the pod that the report names."""
        return next(pod.node for pod in self.engine.pods if pod.name == self.reported.name)

    @property
    def cause(self) -> str:
        """Since when the engine is hung and why, as the end of a sentence about its pod."""
        return f"its engine has been hung since {self.reported.since:%Y-%m-%dT%H:%M:%SZ}: {self.reported.why}"

    @property
    def message(self) -> str:
        """The cause as a sentence that names the pod."""
        return f"rollout pod {self.reported.name}: {self.cause}"


def hung_engines(draft: Draft, observed: Observed) -> tuple[Hung, ...]:
    """The engines that the newest report calls hung, the longest first, whose pods run. One whose container
    has been restarted since then is another process."""
    progress = draft.facts.last_progress
    if progress is None or not draft.is_running or not observed.remembered.report.is_answering:
        return ()
    return tuple(_running_ones(progress.engines.hung or (), observed))


def _running_ones(reported: tuple[HungEngine, ...], observed: Observed) -> Iterator[Hung]:
    first_reported = observed.remembered.report.hung_since
    for each in reported:
        for engine in observed.rollouts:
            if not engine.is_alive or engine.phase != "Running":
                continue
            is_named = any(pod.name == each.name for pod in engine.pods)
            if is_named and not _has_restarted(engine, since=first_reported.get(each.instance)):
                yield Hung(engine, each)


def _has_restarted(engine: EngineView, *, since: datetime | None) -> bool:
    end = engine.last_termination
    return bool(since and end and end.finished_at and end.finished_at > since)


def seconds_until_replaced(found: Hung, observed: Observed, now: datetime) -> float:
    """How long an engine that is hung keeps its pod; 0 when it is to be replaced now."""
    report = observed.remembered.report
    since = report.hung_since.get(found.reported.instance)
    if since is None or report.liveness is None:
        return engines.REPLACE_AFTER_SECONDS
    made_at = (pod.created_at for engine in observed.rollouts for pod in engine.pods if pod.created_at)
    newest = max(made_at, default=None)
    return engines.seconds_until_replaced(
        reported_seconds=(report.liveness.changed_at - since).total_seconds(),
        quiet_seconds=(now - report.liveness.changed_at).total_seconds(),
        newest_engine_seconds=(now - newest).total_seconds() if newest else None,
    )

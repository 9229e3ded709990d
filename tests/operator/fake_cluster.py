"""A fake cluster for planner tests: it holds one job and its pods, and does at once what a plan says.

`FakeCluster` has no API server behind it; it keeps the same views the planner gets from the cache. Time
stands still unless a test moves it.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from grpo_api.contract import labels
from grpo_api.contract.progress import EngineCounts, Progress, TerminationMessage, TrainerState
from grpo_api.contract.reasons import ReasonMessage
from grpo_api.judge.engines import EngineAbsence
from grpo_api.v1alpha1.spec import GRPOJobSpec
from grpo_api.v1alpha1.status import Condition, ConditionType, ErrorSignature, GRPOJobStatus
from grpo_operator.children.child import Child
from grpo_operator.children.config import pod_templates
from grpo_operator.children.names import Names, rollout_node, rollout_position, trainer_position
from grpo_operator.children.snapshot import JobSnapshot
from grpo_operator.cluster.kinds import (
    CONFIG_MAPS,
    JOBS,
    NETWORK_POLICIES,
    PODS,
    SECRETS,
    SERVICES,
    WORKLOADS,
    Kind,
    is_pod_group,
)
from grpo_operator.observe.engine_pods import as_engines
from grpo_operator.observe.from_cache import workload_view
from grpo_operator.observe.observed import (
    ContainerTermination,
    JobAndPods,
    JobView,
    Liveness,
    Observed,
    PodGroupView,
    PodView,
    Refusal,
    TrainerReport,
)
from grpo_operator.observe.process_state import ProcessState
from grpo_operator.permissions import NO_PERMISSIONS
from grpo_operator.plan import make_plan
from grpo_operator.plan.draft import Plan, WorkloadPatch
from grpo_operator.settings import GIVE_BACK_TIMES

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
IMAGE = "example.test/grpo-runtime:1"
UID = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"


def spec(**changes: Any) -> GRPOJobSpec:
    """A short valid spec; `changes` replace top-level sections, in YAML's names."""
    short = {
        "model": {"source": "builtin://tiny"},
        "dataset": {"source": "builtin://copy"},
        "rewards": [{"name": "copy", "builtin": "char_accuracy"}],
        "algorithm": {"steps": 10},
        "rollout": {"replicas": 2},
    }
    return GRPOJobSpec.from_object(short | changes)


def run(**changes: Any) -> JobSnapshot:
    """A job of that spec as it was when it started."""
    return JobSnapshot.take(namespace="default", job="copy", uid=UID, spec=spec(**changes), image=IMAGE)


def job_view(**changes: Any) -> JobView:
    """A job that has not started, but for `changes`."""
    fresh: dict[str, Any] = {
        "namespace": "default",
        "name": "copy",
        "uid": UID,
        "generation": 1,
        "resource_version": "1",
        "is_deleting": False,
        "spec": spec(),
        "problem": "",
        "status": GRPOJobStatus(),
    }
    return JobView(**fresh | changes)


def termination(
    exit_code: int, message: str = "", *, reason: str = "", after: float = 0.0
) -> ContainerTermination:
    """A container's end, `after` seconds later than NOW."""
    return ContainerTermination("trainer", exit_code, reason, message, NOW + timedelta(seconds=after))


def termination_message(
    exit_code: int,
    reason: str,
    message: str,
    *,
    progress: Progress | None = None,
    error: ErrorSignature | None = None,
    is_effect: bool = False,
) -> str:
    written = TerminationMessage(
        exit_code=exit_code,
        reason=reason,
        message=message,
        progress=progress,
        error=error,
        is_effect=is_effect,
    )
    return written.model_dump_json(by_alias=True)


def report(**changes: Any) -> Progress:
    """What a trainer in the middle of its work says."""
    said: dict[str, Any] = {
        "job_uid": UID,
        "attempt": 1,
        "state": TrainerState.TRAINING,
        "step": 4,
        "total_steps": 10,
        "reward": 0.12345,
        "policy_version": "1.4",
        "tokens_per_second": 1234.5,
        "engines": EngineCounts(desired=2, known=2, current=2),
    }
    return Progress(**(said | changes))


def change(workload: dict[str, Any], patch: WorkloadPatch) -> None:
    """A merge patch of the status of a Workload."""
    meta = workload["metadata"]
    assert meta["resourceVersion"] == patch.resource_version
    status = {**workload.get("status", {}), "conditions": list(patch.conditions), **patch.other}
    workload["status"] = {key: value for key, value in status.items() if value is not None}
    meta["resourceVersion"] = str(int(meta["resourceVersion"]) + 1)


def versions(workloads: Mapping[str, dict[str, Any]]) -> dict[str, str]:
    """The state of each Workload."""
    return {
        name: "/".join(item["metadata"][key] for key in ("uid", "resourceVersion"))
        for name, item in workloads.items()
    }


class FakeCluster:
    """One job and what the cluster holds of it."""

    def __init__(
        self,
        job_spec: GRPOJobSpec | None = None,
        *,
        problem: str = "",
        name: str = "copy",
        uid: str = UID,
    ) -> None:
        self.name, self.uid = name, uid
        self.now = NOW
        self.spec = None if problem else (job_spec or spec())
        self.problem = problem
        self.unread_suspend: bool | None = None
        """`spec.suspend` while the rest of the spec cannot be read."""
        self.generation = 1
        self.is_deleting = False
        self.accepted_loss = ""
        self.tracked_by = ""
        self.is_gone = False
        """Whether the operator has deleted the job."""
        self.finalizers: tuple[str, ...] = ()
        self.status = GRPOJobStatus()
        self.pods: dict[str, PodView] = {}
        self.bodies: dict[str, dict[str, Any]] = {}
        self.services: dict[str, dict[str, Any]] = {}
        self.network_policies: dict[str, dict[str, Any]] = {}
        self.pod_groups: dict[str, PodGroupView] = {}
        self.workloads: dict[str, dict[str, Any]] = {}
        """Workloads of Kueue by name, as they are stored."""
        self.queue_problem = ""
        self.num_before_in_queue: int | None = None
        self.cluster_objects: dict[tuple[Kind, str], dict[str, Any] | str] = {}
        self.labels: dict[str, str] = {}
        """Of the job."""
        self.config_names: set[str] = set()
        self.num_secrets = 0
        self.stored_spec: GRPOJobSpec | None = None
        self.pod_templates: Mapping[str, Any] = {}
        self.progress: Progress | None = None
        self.failing_since: datetime | None = None
        self.stored_problem = ""
        self.crd_problem = ""
        self.told_notes: str | None = None
        """Notes that the operator has written into Ready."""
        self.report_problem: ReasonMessage | None = None
        self.is_news = True
        self.liveness: Liveness | None = None
        self.silent_since: datetime | None = None
        self.absence = EngineAbsence()
        self.hung_since: dict[str, datetime] = {}
        self.refusal: Refusal | None = None
        self.state = ProcessState()
        """Of the operator; a new one is what an operator has that starts anew."""
        self.refused_pods: set[str] = set()
        """Names of pods that the API server does not take."""
        self.give_back_times = GIVE_BACK_TIMES
        self.has_network_policies = True
        self.permissions = NO_PERMISSIONS
        self.has_room = True
        """Whether every pod gets a node as soon as it is made."""
        self._num_made = 0

    def observed(self) -> Observed:
        by_name = sorted(self.pods.values(), key=lambda pod: (pod.position, pod.node_index))
        num_nodes = self.spec.rollout.nodes_per_replica if self.spec and self.spec.rollout else 1
        rollouts = [pod for pod in by_name if "-rollout-" in pod.name]
        engines = as_engines(rollouts, num_nodes=num_nodes)  # as the snapshot has them
        job = JobView(
            namespace="default",
            name=self.name,
            uid=self.uid,
            generation=self.generation,
            resource_version="1",
            is_deleting=self.is_deleting,
            spec=self.spec,
            problem=self.problem,
            suspend=self.spec.suspend if self.spec else self.unread_suspend,
            status=self.status,
            accepted_loss=self.accepted_loss,
            finalizers=self.finalizers,
            tracked_by=self.tracked_by,
            queue_label=self.labels.get(labels.QUEUE_NAME, ""),
            priority_label=self.labels.get(labels.PRIORITY_CLASS, ""),
        )
        found = JobAndPods(job, rollouts=engines)
        return Observed(
            job=job,
            trainers=tuple(pod for pod in by_name if "-trainer-" in pod.name),
            rollouts=engines,
            services=self.services,
            network_policies=self.network_policies,
            pod_groups=self.pod_groups,
            workloads={name: workload_view(item) for name, item in self.workloads.items()},
            queue_problem=self.queue_problem,
            num_before_in_queue=self.num_before_in_queue,
            cluster_objects=self.cluster_objects,
            config_names=frozenset(self.config_names),
            stored_spec=self.stored_spec,
            pod_templates=self.pod_templates,
            stored_problem=self.stored_problem,
            crd_problem=self.crd_problem,
            remembered=replace(
                self.state.remember_pods(("default", "copy"), found, now=self.now),
                report=TrainerReport(
                    uid=self.uid,
                    attempt=self.status.attempt,
                    progress=self.progress,
                    problem=self.report_problem,
                    liveness=self.liveness,
                    silent_since=self.silent_since,
                    absence=self.absence,
                    hung_since=self.hung_since,
                    is_written=not self.is_news,
                ),
                failing_since=self.failing_since,
                refusal=self.refusal,
                told_notes=self.told_notes,
            ),
        )

    def plan(self) -> Plan:
        return make_plan(
            self.observed(),
            runtime_image=IMAGE,
            now=self.now,
            has_network_policies=self.has_network_policies,
            give_back=self.give_back_times,
            permissions=self.permissions,
        )

    def step(self) -> Plan:
        """Plan once and do it."""
        plan = self.plan()
        self.status = plan.status
        for deletion in plan.delete:
            if deletion.kind == JOBS:
                self.is_gone = (deletion.name, deletion.uid) == (self.name, self.uid)
                continue
            if deletion.kind == WORKLOADS:
                assert self.workloads.pop(deletion.name)["metadata"]["uid"] == deletion.uid
                continue
            if is_pod_group(deletion.kind):
                assert self.pod_groups.pop(deletion.name).uid == deletion.uid
                continue
            assert self.pods[deletion.name].uid == deletion.uid
            assert not self.pods[deletion.name].is_deleting, f"{deletion.name} is deleted twice"
            self.change(deletion.name, is_deleting=True)
        self.state.mark_deleted(("default", "copy"), [deletion.name for deletion in plan.delete])
        for stop in plan.stop:
            assert self.pods[stop.name].uid == stop.uid
            self.change(stop.name, is_stopping=True)
        for child in plan.create:
            if child.name not in self.refused_pods:
                self._make(child)
        for patch in plan.patch:
            change(self.workloads[patch.name], patch)
        made = [child.name for child in plan.create if child.kind == PODS and child.name in self.pods]
        self.state.mark_made(("default", "copy"), made, now=self.now)
        return plan

    def settle(self) -> Plan:
        """Step until nothing changes, at most ten times."""
        for _ in range(10):
            before = (self.status, dict(self.pods), dict(self.pod_groups), versions(self.workloads))
            plan = self.step()
            if (self.status, self.pods, self.pod_groups, versions(self.workloads)) == before:
                return plan
        raise AssertionError("the plan never comes to rest")

    def start(self) -> "FakeCluster":
        """A job whose pods all run and are ready."""
        self.settle()
        self.run_all()
        self.settle()
        return self

    def run_all(self) -> None:
        for pod in self.pods.values():
            if not pod.is_deleting and pod.phase == "Pending":
                self.bind(pod.name)
                self.change(pod.name, phase="Running", is_ready=True)

    def bind(self, *names: str, node: str = "node-a") -> None:
        """A scheduler gives pods a node, if they have none."""
        for name in names:
            if self.pods[name].scheduled_at is None:
                self.change(name, node=node, scheduled_at=self.now)

    def unbind(self, *names: str, why: ReasonMessage | None = None) -> None:
        """Pods never had a node, and the scheduler says why."""
        for name in names:
            self.change(name, node="", scheduled_at=None, start_problem=why)

    def change(self, name: str, **changes: Any) -> None:
        """The cluster reports something else about a pod."""
        self.pods[name] = replace(self.pods[name], **changes)

    def end(self, name: str, how: ContainerTermination) -> None:
        """A trainer pod's container ends, and the pod with it."""
        phase = "Succeeded" if how.exit_code == 0 else "Failed"
        self.change(name, phase=phase, is_ready=False, termination=how)

    def refuse(self, name: str) -> None:
        """The node of a new pod refuses it."""
        refused = ReasonMessage("OutOfcpu", "Node didn't have enough resource: cpu")
        self.change(name, phase="Failed", is_ready=False, start_problem=refused, created_at=self.now)

    def vanish(self, *names: str) -> None:
        """Pods are gone for good."""
        for name in names:
            del self.pods[name]

    def vanish_deleted(self) -> None:
        """Everything that was asked to go has gone."""
        self.vanish(*[pod.name for pod in self.pods.values() if pod.is_deleting])

    def names(self, role: str, *, is_deleting: bool = False) -> list[str]:
        """Pods of a role, by name without the job's prefix."""
        found = [p for p in self.pods.values() if f"-{role}-" in p.name and p.is_deleting == is_deleting]
        return sorted(pod.name.removeprefix(f"{self.base}-") for pod in found)

    def running(self) -> list[str]:
        """Pods that nobody has asked to end, by name without the job's prefix."""
        found = (p for p in self.pods.values() if p.is_alive and not p.is_stopping)
        return sorted(pod.name.removeprefix(f"{self.base}-") for pod in found)

    @property
    def base(self) -> str:
        return Names.of(job=self.name, uid=self.uid).base

    def pod(self, short: str) -> str:
        """The whole name of `trainer-a1-0`."""
        return f"{self.base}-{short}"

    def condition(self, kind: ConditionType) -> Condition:
        return next(c for c in self.status.conditions if c.type == kind)

    def _make(self, child: Child) -> None:
        if child.kind == PODS:
            assert child.name not in self.pods, f"{child.name} is created twice"
            self._num_made += 1
            position = trainer_position(child.name) or rollout_position(child.name)
            assert position is not None
            self.bodies[child.name] = child.body
            self.pods[child.name] = PodView(
                child.name,
                f"uid-{self._num_made}",
                position,
                "Pending",
                node_index=rollout_node(child.name),
                is_ready=False,
                is_deleting=False,
                image=child.body["spec"]["containers"][0]["image"],
                created_at=self.now,
                given_back=int(child.body["metadata"]["labels"].get(labels.GIVEN_BACK, 0)),
            )
            if self.has_room:
                self.bind(child.name)
        elif child.kind == SERVICES:
            self.services[child.name] = child.body
        elif child.kind == NETWORK_POLICIES:
            self.network_policies[child.name] = child.body
        elif child.kind == WORKLOADS:
            assert child.name not in self.workloads, f"{child.name} is created twice"
            self._num_made += 1
            own = {"uid": f"uid-{self._num_made}", "resourceVersion": "1", "generation": 1}
            own |= {"creationTimestamp": f"{self.now:%Y-%m-%dT%H:%M:%SZ}"}
            self.workloads[child.name] = {**child.body, "metadata": {**child.body["metadata"], **own}}
        elif is_pod_group(child.kind):
            self._make_pod_group(child)
        elif child.kind == CONFIG_MAPS:
            self.config_names.add(child.name)
            self.pod_templates = pod_templates(child.body)
        elif child.kind == SECRETS and child.is_expected:
            assert self.num_secrets, "a Secret is expected that was never made"
        elif child.kind == SECRETS:
            self.num_secrets += 1

    def _make_pod_group(self, child: Child) -> None:
        known = self.pod_groups.get(child.name)
        assert child.is_correction == (known is not None), f"{child.name} is created twice"
        self.bodies[child.name] = child.body
        self._num_made += 1
        self.pod_groups[child.name] = PodGroupView(
            child.kind,
            child.name,
            known.uid if known else f"uid-{self._num_made}",
            created_at=known.created_at if known else self.now,
            woken_at=self.now if child.is_correction else None,
        )

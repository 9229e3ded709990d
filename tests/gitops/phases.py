"""The phases of a job as tools of GitOps tell them apart: what the planner makes of each, and what was
recorded of it on a real API server, in `recorded/`.

`tests/apiserver/test_gitops_recorded.py` records them.
"""

import json
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from grpo_api.contract.progress import TrainerState
from grpo_api.crd import crd
from grpo_api.v1alpha1.job import API_VERSION, KIND

from ..operator.fake_cluster import FakeCluster, report, spec, termination, termination_message
from ..operator.queued_job import queued as queued_job
from ..operator.test_plan_suspend import suspend

RECORDED = Path(__file__).parent / "recorded"
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "install.md"
FINALIZER = "fault.example/x"
SERVICE_ACCOUNT = {"rollout": {"replicas": 1, "podTemplate": {"spec": {"serviceAccountName": "reader"}}}}
SUSPENDING_RULE = {"rules": [{"name": "look", "action": "Suspend", "exitCodes": [1]}]}
_AT = "2026-11-21T12:00:00Z"


def unseen() -> FakeCluster:
    """No operator has seen it."""
    return FakeCluster()


def not_permitted() -> FakeCluster:
    """It asks for what this operator does not allow."""
    cluster = FakeCluster(spec(**SERVICE_ACCOUNT))
    cluster.settle()
    return cluster


def queued() -> FakeCluster:
    """It waits in a queue."""
    return queued_job()


def starting() -> FakeCluster:
    """Its pods start."""
    cluster = FakeCluster()
    cluster.settle()
    return cluster


def not_training() -> FakeCluster:
    """Its pods run, and it makes no steps yet."""
    cluster = FakeCluster().start()
    cluster.progress = report(state=TrainerState.WAITING_FOR_ROLLOUT, step=0)
    cluster.settle()
    return cluster


def training() -> FakeCluster:
    """It makes steps."""
    cluster = FakeCluster().start()
    cluster.progress = report()
    cluster.settle()
    return cluster


def changed() -> FakeCluster:
    """It makes steps, and the operator has not seen the newest change of its spec."""
    cluster = training()
    cluster.generation += 1
    return cluster


def restarting() -> FakeCluster:
    """A trainer pod has failed, and the others end before the next attempt."""
    cluster = FakeCluster(spec(trainer={"numNodes": 2})).start()
    cluster.failing_since = cluster.now - timedelta(seconds=60)  # no other pod tells more of the cause
    _fail(cluster)
    return cluster


def suspending() -> FakeCluster:
    """`spec.suspend` is true, and its pods end."""
    cluster = suspend(training())
    cluster.settle()
    return cluster


def suspended() -> FakeCluster:
    """`spec.suspend` is true, and its pods have ended."""
    cluster = suspending()
    cluster.vanish_deleted()
    cluster.settle()
    return cluster


def suspended_by_a_rule() -> FakeCluster:
    """A rule has suspended it after a failure."""
    cluster = FakeCluster(spec(failurePolicy=SUSPENDING_RULE)).start()
    _fail(cluster)
    cluster.vanish_deleted()
    cluster.settle()
    return cluster


def complete() -> FakeCluster:
    """Every step is done."""
    cluster = FakeCluster().start()
    cluster.end(cluster.pod("trainer-a1-0"), termination(0))
    cluster.settle()
    return cluster


def failed() -> FakeCluster:
    """It has failed."""
    cluster = FakeCluster(spec(failurePolicy={"maxRestarts": 0})).start()
    _fail(cluster)
    return cluster


def deleted() -> FakeCluster:
    """It is being deleted, and a finalizer holds it."""
    cluster = FakeCluster().start()
    cluster.is_deleting, cluster.finalizers = True, (FINALIZER,)
    cluster.generation += 1
    cluster.settle()
    return cluster


def _fail(cluster: FakeCluster) -> None:
    said = termination_message(1, "UnexpectedError", "boom")
    cluster.end(cluster.pod("trainer-a1-0"), termination(1, said))
    cluster.settle()


PHASES: tuple[Callable[[], FakeCluster], ...] = (
    unseen,
    not_permitted,
    queued,
    starting,
    not_training,
    training,
    changed,
    restarting,
    suspending,
    suspended,
    suspended_by_a_rule,
    complete,
    failed,
    deleted,
)
"""In the order of the guide's table."""
NAMES = tuple(phase.__name__ for phase in PHASES)


def recorded(name: str) -> dict[str, Any]:
    """The object of a phase as the API server had it."""
    found: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text())
    return found


def planned(phase: Callable[[], FakeCluster]) -> dict[str, Any]:
    """The object of a phase as the planner writes it, without its spec."""
    cluster = phase()
    (version,) = crd()["spec"]["versions"]
    default = version["schema"]["openAPIV3Schema"]["properties"]["status"]["default"]
    status = cluster.status.to_object() if phase is not unseen else default
    meta = {"name": cluster.name, "generation": cluster.generation}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "status": status}


def essence(job: dict[str, Any]) -> dict[str, Any]:
    """What an object says, but for sentences, times and counts."""
    status = job["status"]
    conditions = {c["type"]: f"{c['status']} {c['reason']}" for c in status.get("conditions", ())}
    return {
        "phase": status.get("phase"),
        "is observed": status["observedGeneration"] == job["metadata"]["generation"],
        **conditions,
    }


def without_chance(job: dict[str, Any], *, name: str) -> dict[str, Any]:
    """A stored object without what differs from run to run and from release to release, under this name."""
    meta, status = job["metadata"], job["status"]
    kept = {key: meta[key] for key in ("generation", "deletionTimestamp", "finalizers") if key in meta}
    text = json.dumps({key: value for key, value in status.items() if key not in _OF_A_RELEASE})
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", _AT, text)
    text = re.sub(rf"\b{meta['name']}-[0-9a-f]{{6,}}\b", f"{name}-012345", text).replace(meta["uid"], "a-uid")
    if "deletionTimestamp" in kept:
        kept["deletionTimestamp"] = _AT
    return {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "metadata": {"name": name, "namespace": "default", **kept},
        "spec": {key: value for key, value in job["spec"].items() if key == "suspend"},
        "status": json.loads(text),
    }


_OF_A_RELEASE = frozenset({"revision", "configDigest"})


def table() -> dict[str, tuple[str, ...]]:
    """The rows of the guide's table by their first cell: what each tool says."""
    section = GUIDE.read_text().partition("## GitOps")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("|")
    ]
    return {row[0]: tuple(cell.strip("`") for cell in row[1:]) for row in rows[2:]}

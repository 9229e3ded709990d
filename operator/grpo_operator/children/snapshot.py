"""The snapshot of a job when it started: everything that its children are built from."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from grpo_api.changes import fixed_part
from grpo_api.contract import labels
from grpo_api.contract.environment import Role
from grpo_api.contract.run_config import RunConfig
from grpo_api.contract.weight_sync_choice import backend_of, with_backend
from grpo_api.resolve import resolve
from grpo_api.v1alpha1.job import API_VERSION, KIND, GRPOJob, ObjectMeta
from grpo_api.v1alpha1.spec import GRPOJobSpec, Mode, WeightSyncBackend
from grpo_operator.children.names import Names
from grpo_operator.cluster.kinds import KubeObject


@dataclass(frozen=True)
class JobSnapshot:
    """The spec and the image of one job as they were when it started, with its names."""

    namespace: str
    job: str
    uid: str
    spec: GRPOJobSpec
    """It names the mode and the weight-sync backend, never `Auto`."""
    image: str
    revision: str
    """The hash of what must not change."""
    templates: Mapping[str, KubeObject] = field(default_factory=dict)
    """The templates of its pods, as it started with them; empty before they are stored."""

    @classmethod
    def take(
        cls,
        *,
        namespace: str,
        job: str,
        uid: str,
        spec: GRPOJobSpec,
        image: str,
        backend: WeightSyncBackend | None = None,
        checkpoints: str | None = None,
    ) -> "JobSnapshot":
        """The snapshot of the spec as it is now. What `Auto` means is decided here and never again, whatever
        a later release would choose. `backend` is that of a job which has started, and `checkpoints` the
        path of the checkpoints that `resumeFrom` names."""
        taken = with_backend(spec, (backend or backend_of(spec).backend).value)
        taken = taken.model_copy(update={"mode": spec.resolved_mode})
        if taken.resume_from is not None and checkpoints is not None:
            resume_from = taken.resume_from.with_source(checkpoints)
            taken = taken.model_copy(update={"resume_from": resume_from})
        return cls(namespace, job, uid, taken, image, _revision(taken, uid=uid, image=image))

    @cached_property
    def names(self) -> Names:
        """Names of the children."""
        return Names.of(job=self.job, uid=self.uid)

    @property
    def has_rollout(self) -> bool:
        """Whether the engines have pods of their own."""
        return self.spec.resolved_mode is Mode.DISAGGREGATED

    @property
    def needs_tokens(self) -> bool:
        """Whether the pods have ports that tokens guard: those of engines, or of Ray."""
        return self.config.needs_tokens

    @property
    def num_engines(self) -> int:
        """Engines in rollout pods that there should be now."""
        return self.spec.rollout.replicas if self.has_rollout and self.spec.rollout else 0

    @property
    def nodes_per_engine(self) -> int:
        """Rollout pods of each of them."""
        return self.spec.rollout.nodes_per_replica if self.spec.rollout else 1

    @cached_property
    def config(self) -> RunConfig:
        """The RunConfig that the pods get."""
        meta = ObjectMeta(name=self.job, namespace=self.namespace, uid=self.uid)
        return resolve(
            GRPOJob(api_version="grpo.dev/v1alpha1", kind="GRPOJob", metadata=meta, spec=self.spec)
        )

    @cached_property
    def run_config_text(self) -> str:
        """The RunConfig as the file that the pods read."""
        return json.dumps(self.config.to_object(), indent=2)

    def metadata(self, name: str, *, role: str = "", extra: dict[str, str] | None = None) -> KubeObject:
        """Metadata of a child: our labels, and the job as its controller.

        blockOwnerDeletion is false: true would need a right on the job's finalizers in clusters that
        enforce owner references, and foreground deletion does not need it to leave nothing behind.
        """
        own = {
            labels.JOB: labels.bounded(self.job),
            labels.JOB_UID: self.uid,
            labels.MANAGED_BY: labels.OPERATOR,
            labels.NAME: "grpo",
            labels.INSTANCE: labels.bounded(self.job),
        }
        if role:
            own |= {labels.ROLE: str(role), labels.COMPONENT: str(role)}
        return {
            "name": name,
            "namespace": self.namespace,
            "labels": own | (extra or {}),
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": KIND,
                    "name": self.job,
                    "uid": self.uid,
                    "controller": True,
                    "blockOwnerDeletion": False,
                }
            ],
        }

    def selector(self, role: str) -> dict[str, str]:
        """Labels that select exactly this job's pods of a role. Of an engine of several pods they select the
        one with the server: nothing calls the others, and `kubectl scale` counts one pod for each replica."""
        own = {labels.JOB_UID: self.uid, labels.ROLE: str(role)}
        has_workers = role == Role.ROLLOUT and self.nodes_per_engine > 1
        return own | ({labels.NODE_INDEX: "0"} if has_workers else {})


def _revision(spec: GRPOJobSpec, *, uid: str, image: str) -> str:
    return labels.short_hash(json.dumps([uid, image, fixed_part(spec)], sort_keys=True), 10)

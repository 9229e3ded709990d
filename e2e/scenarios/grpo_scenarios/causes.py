"""Jobs that cannot work, each for one cause, and the sentence that the GRPOJob's status must then have.

docs/causes.md has a row for each; a contract test compares the two.
"""

from dataclasses import dataclass
from typing import Any

from grpo_scenarios.namespace import Object

QUOTA_GPUS = 4
SMALL_CLAIM, BROKEN_CLAIM, HUGE_CLAIM = "small", "broken", "huge"
CODE = "reward-code"
DATA = "data"
PRESENT = {
    CODE: {
        "raises.py": "def reward(completions, **_):\n    raise KeyError('answers')\n",
        "huge.py": "def reward(completions, **_):\n    return [3e38, -3e38] * (len(completions) // 2)\n",
    },
    DATA: {
        "questions.jsonl": '{"question": "a="}\n' * 4,
        "empty.jsonl": "",
    },
}
"""The ConfigMaps in the namespace, and what is in them."""


@dataclass(frozen=True)
class Cause:
    """One cause, and a job that has it: `spec` replaces sections of a colocated job that would work.

    status.lastFailure must have `reason` and a message that contains every string of `says`. The condition of
    type `condition` must have the same message, and the same reason unless `condition_reason` is set.
    `is_end` is whether the cause ends the job. `seconds` is how long the cause may take to happen; status
    must report it in the 60 s after that.
    """

    slug: str
    spec: Object
    reason: str
    says: tuple[str, ...]
    condition: str = "Running"
    condition_reason: str = ""
    is_end: bool = False
    seconds: float = 0.0

    @property
    def job(self) -> Object:
        """The GRPOJob."""
        spec = {**_WORKING, **self.spec}
        return {
            "apiVersion": "grpo.dev/v1alpha1",
            "kind": "GRPOJob",
            "metadata": {"name": self.slug},
            "spec": spec,
        }


PROCESSES_SECONDS = 300.0
"""How long processes may take to load torch, or an engine to start, on a busy machine."""
_REQUESTS = {"cpu": "100m", "memory": "64Mi"}
_ALGORITHM: Object = {"steps": 5, "promptsPerStep": 4, "groupSize": 4}
_ENGINE: Object = {"maxModelLen": 64, "kvCacheMemory": "64Mi"}
_WORKING: Object = {
    "model": {"source": "builtin://tiny"},
    "dataset": {"source": "builtin://copy"},
    "rewards": [{"name": "copy", "builtin": "char_accuracy"}],
    "algorithm": _ALGORITHM,
    "sampling": {"maxTokens": 4},
    "engine": _ENGINE,
    "trainer": {"resources": {"limits": {"memory": "4Gi"}, "requests": _REQUESTS}},
    "failurePolicy": {"maxRestarts": 0},
}


def _trainer(**limits: str | int) -> Object:
    requests = {name: value for name, value in _REQUESTS.items() if name not in limits}
    return {"trainer": {"resources": {"limits": limits, "requests": requests}}}


def _engines(**changes: Any) -> Object:
    resources = {"limits": {"memory": "4Gi"}, "requests": _REQUESTS}
    return {"rollout": {"replicas": 1, "resources": resources, **changes}}


_NO_ENGINE = _engines(resources={"limits": {"nvidia.com/gpu": 1}})
"""A rollout pod that is never scheduled: for causes that show before an engine is needed."""


def _reward(**source: Any) -> Object:
    return {"rewards": [{"name": "mine", **source}]}


def _code(key: str) -> Object:
    return {"configMap": {"name": CODE, "key": key, "function": "reward"}}


_NO_CACHE: Object = {"engine": {"maxModelLen": 64}}
"""No kvCacheMemory: one that is larger than the pod's memory would be refused by the API server."""

WITHOUT_PROCESSES = (
    Cause("wrong-image", {"image": "localhost/nowhere/grpo-runtime:1"}, "ErrImagePull",
          ("image localhost/nowhere/grpo-runtime:1 cannot be pulled", "connection refused", "spec.image")),
    Cause("not-a-runtime-image", {"image": "localhost/pause:dev"}, "StartError",
          ("is spec.image a runtime image?", "grpo-runtime"), condition="Failed", is_end=True),
    Cause("pull-secret-missing",
          {"image": "localhost/private/grpo-runtime:1", "imagePullSecrets": ["registry-login"]},
          "ErrImagePull",
          ("Secret registry-login of imagePullSecrets does not exist", "localhost/private/grpo-runtime:1")),
    Cause("unschedulable-memory", _trainer(memory="900Gi"), "Unschedulable",
          ("no node has enough memory free", "lower trainer.resources", "Insufficient memory")),
    Cause("unschedulable-gpu", _trainer(memory="4Gi", **{"nvidia.com/gpu": 1}), "Unschedulable",
          ("no node has enough nvidia.com/gpu free", "Insufficient nvidia.com/gpu")),
    Cause("unschedulable-claim", {"checkpoint": {"claimName": HUGE_CLAIM}}, "Unschedulable",
          ("no volume fits one of its PersistentVolumeClaims", "kubectl describe pvc")),
    Cause("claim-missing", {"checkpoint": {"claimName": "nowhere"}}, "Unschedulable",
          ("PersistentVolumeClaim nowhere does not exist: create it",)),
    Cause("configmap-missing", {"dataset": {"source": "configmap://nowhere/train.jsonl"}}, "FailedMount",
          ("a volume cannot be mounted", 'configmap "nowhere" not found')),
    Cause("mount-failing", {"checkpoint": {"claimName": BROKEN_CLAIM}}, "FailedMount",
          ("a volume cannot be mounted", "does not exist")),
    Cause("secret-missing", {"hub": {"tokenSecret": "nowhere"}}, "FailedMount",
          ("a volume cannot be mounted", 'secret "nowhere" not found')),
    Cause("quota", _trainer(memory="4Gi", **{"nvidia.com/gpu": QUOTA_GPUS + 1}), "QuotaExceeded",
          ("does not fit into the namespace's quota", "requests.nvidia.com/gpu")),
    Cause("pod-security", {}, "PodSecurityRefused",
          ("is refused by Pod Security", "violates PodSecurity", "NET_ADMIN")),
)  # fmt: skip
"""None of these jobs ever runs a process of ours, so all of them can exist at once."""

TRAINER_ONLY = (
    Cause("oom-supervisor", {**_trainer(memory="24Mi"), **_NO_CACHE}, "OOMKilled",
          ("the container trainer ran out of memory: raise trainer.resources.limits.memory",),
          condition="Failed", is_end=True, seconds=PROCESSES_SECONDS),
    Cause("oom-rank", {**_trainer(memory="220Mi"), **_NO_CACHE}, "OOMKilled",
          ("the container trainer ran out of memory: raise trainer.resources.limits.memory", "rank 0"),
          condition="Failed", is_end=True, seconds=PROCESSES_SECONDS),
    Cause("wrong-model-path", {"model": {"source": "file:///models/nowhere"}, **_NO_ENGINE}, "UserError",
          ("model.source (file:///models/nowhere)", "/models/nowhere"),
          condition="Failed", is_end=True, seconds=PROCESSES_SECONDS),
    Cause("dataset-without-column",
          {"dataset": {"source": f"configmap://{DATA}/questions.jsonl"}, **_NO_ENGINE}, "UserError",
          ("dataset.prompt (prompt) is not a column of", "it has question"),
          condition="Failed", is_end=True, seconds=PROCESSES_SECONDS),
    Cause("empty-dataset", {"dataset": {"source": f"configmap://{DATA}/empty.jsonl"}, **_NO_ENGINE},
          "UserError", (f"dataset.source (configmap://{DATA}/empty.jsonl) is empty",),
          condition="Failed", is_end=True, seconds=PROCESSES_SECONDS),
    Cause("reward-module-missing", {**_reward(function="nowhere:reward"), **_NO_ENGINE}, "UserError",
          ("function nowhere:reward needs module nowhere", "add it there"),
          condition="Failed", is_end=True, seconds=PROCESSES_SECONDS),
    Cause("fleet-lost", _engines(resources={"limits": {"memory": "4Gi", "cpu": "20m"}}, lostTimeoutSeconds=3),
          "RolloutLost", ("no rollout engine", "for 3 s"),
          condition="Failed", is_end=True, seconds=PROCESSES_SECONDS),
    Cause("engine-out-of-memory",
          {**_engines(resources={"limits": {"memory": "220Mi"}, "requests": _REQUESTS}), **_NO_CACHE},
          "OOMKilled",
          ("the engine has been restarted",
           "the container engine ran out of memory: raise rollout.resources.limits.memory"),
          condition="RolloutReady", seconds=PROCESSES_SECONDS),
    Cause("engine-never-ready",
          {**_engines(resources={"limits": {"memory": "4Gi", "cpu": "20m"}}), "startupDeadlineSeconds": 30},
          "EnginesStarting", ("0/1 engines have been admitted: rollout pod engine-never-ready",),
          condition="Failed", condition_reason="StartupDeadlineExceeded", is_end=True, seconds=30.0),
)  # fmt: skip
"""The processes of a trainer start, and no engine ever serves."""

WITH_ENGINE = (
    Cause("wrong-engine-argument", {**_engines(), "engine": _ENGINE | {"args": ["--block-size=many"]}},
          "UserError", ("vLLM refuses engine.args", "--block-size"),
          condition="Failed", is_end=True, seconds=PROCESSES_SECONDS),
    Cause("reward-crashing", _reward(**_code("raises.py")), "UserError",
          ("reward mine failed on 16 of 16 completions of step 1", "maxFailureShare", "KeyError"),
          condition="Failed", is_end=True, seconds=PROCESSES_SECONDS),
    Cause("gradient-not-finite",
          {**_reward(**_code("huge.py")),
           "algorithm": _ALGORITHM | {"scaleRewards": "none", "maxNonFiniteSteps": 1}}, "UserError",
          ("the gradient of step 1 is not finite", "learningRate", "extreme rewards"),
          condition="Failed", is_end=True, seconds=PROCESSES_SECONDS),
    Cause("checkpoint-volume-full", {"checkpoint": {"claimName": SMALL_CLAIM, "everySteps": 1}}, "VolumeFull",
          ("the volume of /output is full", "checkpoint.keep", "checkpoint.claimName"),
          condition="Failed", is_end=True, seconds=PROCESSES_SECONDS),
)  # fmt: skip
"""These need an engine that serves, in its own pod or in the trainer's process."""

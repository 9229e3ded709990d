"""What must hold between fields of a GRPOJob: one table, enforced by the API server and by the models.

A bound on a single field is written where the field is declared. A rule that looks at more than one value
is a row of `RULES`: the CEL expression goes into the CRD, the Python predicate into the model's validator,
and both refuse with the same sentence. `IMMUTABLE` says what cannot change after creation; only the API
server sees old and new together, so these rows are CEL only.
"""

import json
import re
from typing import TYPE_CHECKING

from grpo_api.quantity import DEVICE_COUNT_PATTERN, is_device_count, parse_quantity
from grpo_api.rule import Rule, Transition

if TYPE_CHECKING:
    from pydantic import BaseModel

    from grpo_api.v1alpha1.job import GRPOJob
    from grpo_api.v1alpha1.spec import (
        AlgorithmSpec,
        DatasetSpec,
        EngineSpec,
        GRPOJobSpec,
        ModelSpec,
        ResourcesSpec,
        RewardSpec,
        TrainerSpec,
    )

JOB_NAME_PATTERN = r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$"
RESOURCE_PATTERN = (
    r"^(cpu|memory|ephemeral-storage"
    r"|[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)$"
)
GPU = "nvidia.com/gpu"
MIN_KV_CACHE_BYTES = 2**20
OWNED_ENGINE_ARGUMENTS = (
    *("model", "tokenizer", "served-model-name", "revision", "dtype", "max-model-len"),
    *("kv-cache-memory-bytes", "gpu-memory-utilization", "logprobs-mode", "load-format", "seed"),
    *("host", "port", "uds", "api-key", "middleware", "root-path", "config", "ssl-keyfile", "ssl-certfile"),
    *("enable-scale-out", "weight-transfer-config", "enable-sleep-mode", "enable-server-load-tracking"),
    *("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "distributed-executor-backend"),
    *("worker-cls", "worker-extension-cls", "trust-remote-code", "disable-uvicorn-access-log"),
    *("no-enable-scale-out", "no-enable-sleep-mode", "no-disable-uvicorn-access-log", "headless"),
)
"""Arguments of vLLM that follow from the spec or that the product relies on."""


def broken_rules(value: "BaseModel") -> list[Rule]:
    """The rules of this value's own model that do not hold, in the order of the table."""
    return [rule for rule in rules_of(type(value).__name__) if not rule.holds(value)]


def rules_of(model: str) -> list[Rule]:
    """The rows about one model."""
    return [rule for rule in RULES if rule.model == model]


def _cel_quantity(path: str) -> str:
    return f"quantity(string({path}))"


def _cel_is_device_count(path: str) -> str:
    return f"string({path}).matches('{DEVICE_COUNT_PATTERN}')"


def _cel_gpus(resources: str) -> str:
    """GPUs of one pod as an integer; 0 while another rule still refuses the number as not whole."""
    gpus = f"{resources}.limits['{GPU}']"
    return f"('{GPU}' in {resources}.limits && {_cel_is_device_count(gpus)} ? int(string({gpus})) : 0)"


def _cel_holds(pod: str) -> str:
    """Whether the KV cache fits into a pod; on a GPU it is not in the pod's memory."""
    limits = f"{pod}.resources.limits"
    memory = _cel_quantity(f"{limits}['memory']")
    cache = _cel_quantity("self.engine.kvCacheMemory")
    return f"(!('memory' in {limits}) || '{GPU}' in {limits} || {cache}.compareTo({memory}) < 0)"


_CEL_HAS_PODS = "(has(self.rollout) && has(self.rollout.resources))"
"""Whether rollout can be looked into; the scale subresource writes replicas alone and fills in no default."""
_CEL_PROCESSES = (
    "(has(self.trainer.processesPerNode) ? self.trainer.processesPerNode : "
    f"{_cel_gpus('self.trainer.resources')} > 0 ? {_cel_gpus('self.trainer.resources')} : 1)"
)
"""Training processes of a node."""


# Metadata


def _name_is_a_label(job: "GRPOJob") -> bool:
    return re.fullmatch(JOB_NAME_PATTERN, job.metadata.name) is not None


# Rewards


def _has_one_source(reward: "RewardSpec") -> bool:
    return [reward.builtin, reward.function, reward.config_map].count(None) == 2


def _pattern_belongs_to_regex(reward: "RewardSpec") -> bool:
    return (reward.builtin == "regex") == (reward.pattern is not None)


def _overlong_belongs_to_length(reward: "RewardSpec") -> bool:
    return (reward.builtin == "length") == (reward.overlong_tokens is not None)


def _overlong_fits(spec: "GRPOJobSpec") -> bool:
    return all((reward.overlong_tokens or 0) <= spec.sampling.max_tokens for reward in spec.rewards)


def _scorer_has_its_dataset(spec: "GRPOJobSpec") -> bool:
    has_scorer = any(reward.builtin == "reasoning_gym" for reward in spec.rewards)
    return not has_scorer or spec.dataset.source.startswith("reasoning-gym://")


def _some_reward_counts(spec: "GRPOJobSpec") -> bool:
    return any(reward.weight != 0 for reward in spec.rewards)


# Data and algorithm


def _builtin_columns_are_default(dataset: "DatasetSpec") -> bool:
    has_columns = not dataset.source.startswith(("builtin://", "reasoning-gym://"))
    return has_columns or (dataset.prompt == "prompt" and dataset.answer == "answer")


def _only_the_hub_has_splits(dataset: "DatasetSpec") -> bool:
    settings = (dataset.split, dataset.subset, dataset.revision)
    return dataset.source.startswith("hf://") or settings == (None, None, None)


def _only_the_hub_has_revisions(model: "ModelSpec") -> bool:
    return model.source.startswith("hf://") or model.revision is None


def _warmup_ends(algorithm: "AlgorithmSpec") -> bool:
    return algorithm.optimizer.warmup_steps <= algorithm.steps


def _prompt_fits(spec: "GRPOJobSpec") -> bool:
    return spec.sampling.max_tokens < spec.engine.max_model_len


def _every_rank_has_samples(spec: "GRPOJobSpec") -> bool:
    ranks = spec.trainer.num_nodes * spec.trainer.num_processes
    return spec.algorithm.prompts_per_step * spec.algorithm.group_size >= ranks


# Resources


def _processes_share_gpus_evenly(trainer: "TrainerSpec") -> bool:
    return trainer.processes_per_node is None or trainer.resources.num_gpus % trainer.processes_per_node == 0


def _rollout_is_not_colocated(spec: "GRPOJobSpec") -> bool:
    return spec.mode != "Colocated" or spec.rollout is None


def _disaggregated_has_rollout(spec: "GRPOJobSpec") -> bool:
    return spec.mode != "Disaggregated" or spec.rollout is not None


def _engine_has_one_gpu(spec: "GRPOJobSpec") -> bool:
    return spec.rollout is None or spec.rollout.resources.num_gpus <= 1


def _rollout_engine_is_whole(spec: "GRPOJobSpec") -> bool:
    return spec.rollout is None or spec.engine.tensor_parallel_size == 1


def _engines_share_processes_evenly(spec: "GRPOJobSpec") -> bool:
    return spec.trainer.num_processes % spec.engine.tensor_parallel_size == 0


def _arguments_are_not_ours(engine: "EngineSpec") -> bool:
    names = [argument[2:].partition("=")[0] for argument in engine.args]
    return not any(owned.startswith(name) for name in names for owned in OWNED_ENGINE_ARGUMENTS)


def _limits_are_resources(resources: "ResourcesSpec") -> bool:
    return all(re.fullmatch(RESOURCE_PATTERN, name) for name in resources.limits)


def _requests_are_resources(resources: "ResourcesSpec") -> bool:
    return all(re.fullmatch(RESOURCE_PATTERN, name) for name in resources.requests)


def _devices_are_whole(resources: "ResourcesSpec") -> bool:
    return all("/" not in name or is_device_count(amount) for name, amount in resources.limits.items())


def _requests_are_within_limits(resources: "ResourcesSpec") -> bool:
    return all(
        name not in resources.limits or parse_quantity(amount) <= parse_quantity(resources.limits[name])
        for name, amount in resources.requests.items()
    )


def _device_requests_are_limits(resources: "ResourcesSpec") -> bool:
    return all(
        "/" not in name
        or (name in resources.limits and parse_quantity(amount) == parse_quantity(resources.limits[name]))
        for name, amount in resources.requests.items()
    )


def _kv_cache_is_not_tiny(engine: "EngineSpec") -> bool:
    return engine.kv_cache_memory is None or parse_quantity(engine.kv_cache_memory) >= MIN_KV_CACHE_BYTES


def _kv_cache_fits(spec: "GRPOJobSpec") -> bool:
    pod, wanted = spec.rollout or spec.trainer, spec.engine.kv_cache_memory
    limits = pod.resources.limits
    if wanted is None or "memory" not in limits or GPU in limits:
        return True
    return parse_quantity(wanted) < parse_quantity(limits["memory"])


IMMUTABLE: tuple[str, ...] = (
    "mode",
    "image",
    "imagePullSecrets",
    "model",
    "dataset",
    "rewards",
    "algorithm",
    "sampling",
    "trainer",
    "engine",
    "rollout.resources",
    "rollout.lostTimeoutSeconds",
    "weightSync",
    "checkpoint",
    "hub",
)
"""Paths below spec that are frozen once the job exists."""


def immutable_sentence(path: str) -> str:
    """What the API server says to a change of an immutable field."""
    return f"spec.{path} cannot be changed once the job exists: create a new job"


def transition_rule(path: str, *, is_optional: bool) -> str:
    """CEL on the spec: the field at `path` is as it was, and neither added nor removed."""
    same = f"self.{path} == oldSelf.{path}"
    if is_optional:
        same = f"has(self.{path}) == has(oldSelf.{path}) && (!has(self.{path}) || {same})"
    parent = path.rpartition(".")[0]
    return f"!has(self.{parent}) || !has(oldSelf.{parent}) || {same}" if parent else same


ROLLOUT_STAYS = Transition(
    "has(self.rollout) == has(oldSelf.rollout)",
    "spec.rollout can be neither added nor removed once the job exists, also not by kubectl scale, for it "
    "decides where the engines run: create a new job",
    field=".rollout",
)
"""Whether there are rollout pods; how many may change."""


RULES: tuple[Rule, ...] = (
    Rule(
        "GRPOJob",
        f"self.metadata.name.matches('{JOB_NAME_PATTERN}')",
        _name_is_a_label,
        "metadata.name becomes a label and part of host names: use at most 63 lower-case letters, digits "
        "and hyphens, beginning with a letter and ending with a letter or a digit",
        field=".metadata.name",
    ),
    Rule(
        "RewardSpec",
        "[has(self.builtin), has(self.function), has(self.configMap)].filter(is, is).size() == 1",
        _has_one_source,
        "a reward needs exactly one of builtin, function and configMap: set one and remove the others",
    ),
    Rule(
        "RewardSpec",
        "(has(self.builtin) && self.builtin == 'regex') == has(self.pattern)",
        _pattern_belongs_to_regex,
        "pattern belongs to the builtin regex, which needs it: set both or neither",
        field=".pattern",
    ),
    Rule(
        "RewardSpec",
        "(has(self.builtin) && self.builtin == 'length') == has(self.overlongTokens)",
        _overlong_belongs_to_length,
        "overlongTokens belongs to the builtin length, which needs it: set both or neither",
        field=".overlongTokens",
    ),
    Rule(
        "GRPOJobSpec",
        "self.rewards.all(reward, !has(reward.overlongTokens) || "
        "reward.overlongTokens <= self.sampling.maxTokens)",
        _overlong_fits,
        "overlongTokens in rewards must not exceed sampling.maxTokens ({sampling.maxTokens}): lower it or "
        "raise maxTokens",
        field=".rewards",
    ),
    Rule(
        "GRPOJobSpec",
        "self.dataset.source.startsWith('reasoning-gym://') || "
        "!self.rewards.exists(reward, has(reward.builtin) && reward.builtin == 'reasoning_gym')",
        _scorer_has_its_dataset,
        "rewards have the builtin reasoning_gym, which is the scorer of a reasoning-gym:// dataset: take "
        "such a dataset or another reward",
        field=".rewards",
    ),
    Rule(
        "GRPOJobSpec",
        "self.rewards.exists(reward, reward.weight != 0.0)",
        _some_reward_counts,
        "rewards must not all have weight 0, for then nothing is learned: set the weight of at least one",
        field=".rewards",
    ),
    Rule(
        "DatasetSpec",
        "!(self.source.startsWith('builtin://') || self.source.startsWith('reasoning-gym://')) || "
        "(self.prompt == 'prompt' && self.answer == 'answer')",
        _builtin_columns_are_default,
        "dataset.prompt and dataset.answer name columns of a file, and a builtin:// or reasoning-gym:// "
        "source has none: remove them",
    ),
    Rule(
        "DatasetSpec",
        "self.source.startsWith('hf://') || !(has(self.split) || has(self.subset) || has(self.revision))",
        _only_the_hub_has_splits,
        "dataset.split, dataset.subset and dataset.revision are for hf:// sources: remove them",
    ),
    Rule(
        "ModelSpec",
        "self.source.startsWith('hf://') || !has(self.revision)",
        _only_the_hub_has_revisions,
        "model.revision is for hf:// sources: remove it",
        field=".revision",
    ),
    Rule(
        "AlgorithmSpec",
        "self.optimizer.warmupSteps <= self.steps",
        _warmup_ends,
        "optimizer.warmupSteps ({optimizer.warmupSteps}) must not exceed algorithm.steps ({steps}): "
        "lower it or train longer",
        field=".optimizer.warmupSteps",
    ),
    Rule(
        "GRPOJobSpec",
        "self.sampling.maxTokens < self.engine.maxModelLen",
        _prompt_fits,
        "sampling.maxTokens ({sampling.maxTokens}) must be smaller than engine.maxModelLen "
        "({engine.maxModelLen}), or no prompt fits before the completion: lower one or raise the other",
        field=".sampling.maxTokens",
    ),
    Rule(
        "GRPOJobSpec",
        "self.algorithm.promptsPerStep * self.algorithm.groupSize >= "
        f"self.trainer.numNodes * {_CEL_PROCESSES}",
        _every_rank_has_samples,
        "algorithm.promptsPerStep ({algorithm.promptsPerStep}) times groupSize ({algorithm.groupSize}) must "
        "give every training process a sample: raise promptsPerStep or use fewer trainer processes",
        field=".algorithm.promptsPerStep",
    ),
    Rule(
        "TrainerSpec",
        f"!has(self.processesPerNode) || {_cel_gpus('self.resources')} % self.processesPerNode == 0",
        _processes_share_gpus_evenly,
        "trainer.processesPerNode ({processesPerNode}) must divide the nvidia.com/gpu limit of the trainer: "
        "remove processesPerNode to have one process for each GPU",
        field=".processesPerNode",
    ),
    Rule(
        "GRPOJobSpec",
        "self.mode != 'Colocated' || !has(self.rollout)",
        _rollout_is_not_colocated,
        "rollout describes pods that mode Colocated does not have: remove rollout, or set mode to "
        "Disaggregated",
        field=".rollout",
    ),
    Rule(
        "GRPOJobSpec",
        "self.mode != 'Disaggregated' || has(self.rollout)",
        _disaggregated_has_rollout,
        "mode Disaggregated needs rollout, the pods with the engines: add rollout with replicas, or set mode "
        "to Colocated",
        field=".mode",
    ),
    Rule(
        "GRPOJobSpec",
        "!has(self.rollout) || self.engine.tensorParallelSize == 1",
        _rollout_engine_is_whole,
        "engine.tensorParallelSize ({engine.tensorParallelSize}) above 1 needs mode Colocated: set it to 1 "
        "and raise rollout.replicas, or remove rollout",
        field=".engine.tensorParallelSize",
    ),
    Rule(
        "GRPOJobSpec",
        f"{_CEL_PROCESSES} % self.engine.tensorParallelSize == 0",
        _engines_share_processes_evenly,
        "engine.tensorParallelSize ({engine.tensorParallelSize}) must divide the training processes of a "
        "node, which share the engines: lower it or change trainer.processesPerNode",
        field=".engine.tensorParallelSize",
    ),
    Rule(
        "EngineSpec",
        f"self.args.all(argument, !{json.dumps(list(OWNED_ENGINE_ARGUMENTS))}"
        ".exists(owned, owned.startsWith(argument.split('=')[0].substring(2))))",
        _arguments_are_not_ours,
        "engine.args has an argument that follows from the rest of the spec or that weight sync relies on: "
        "remove it, and set the field it belongs to if there is one",
        field=".args",
    ),
    Rule(
        "GRPOJobSpec",
        f"!{_CEL_HAS_PODS} || {_cel_gpus('self.rollout.resources')} <= 1",
        _engine_has_one_gpu,
        "rollout.resources.limits of nvidia.com/gpu must be at most 1, because an engine uses one: set it "
        "to 1 and raise rollout.replicas",
        field=".rollout.resources.limits",
    ),
    Rule(
        "ResourcesSpec",
        f"self.limits.all(name, name.matches('{RESOURCE_PATTERN}'))",
        _limits_are_resources,
        "limits has a name that is not a resource: use cpu, memory, ephemeral-storage or DOMAIN/NAME, "
        "such as nvidia.com/gpu",
        field=".limits",
    ),
    Rule(
        "ResourcesSpec",
        f"self.requests.all(name, name.matches('{RESOURCE_PATTERN}'))",
        _requests_are_resources,
        "requests has a name that is not a resource: use cpu, memory, ephemeral-storage or DOMAIN/NAME, "
        "such as nvidia.com/gpu",
        field=".requests",
    ),
    Rule(
        "ResourcesSpec",
        f"self.limits.all(name, !name.contains('/') || {_cel_is_device_count('self.limits[name]')})",
        _devices_are_whole,
        "limits of devices such as nvidia.com/gpu must be whole numbers without a unit, up to 9999: write 1, "
        "not 1000m or 0.5",
        field=".limits",
    ),
    Rule(
        "ResourcesSpec",
        "self.requests.all(name, !(name in self.limits) || "
        f"{_cel_quantity('self.requests[name]')}.compareTo({_cel_quantity('self.limits[name]')}) <= 0)",
        _requests_are_within_limits,
        "requests must not exceed limits of the same resource: lower the request or raise the limit",
        field=".requests",
    ),
    Rule(
        "ResourcesSpec",
        "self.requests.all(name, !name.contains('/') || (name in self.limits && "
        f"{_cel_quantity('self.requests[name]')}.compareTo({_cel_quantity('self.limits[name]')}) == 0))",
        _device_requests_are_limits,
        "requests of devices such as nvidia.com/gpu must equal their limits: set only the limit",
        field=".requests",
    ),
    Rule(
        "EngineSpec",
        f"!has(self.kvCacheMemory) || {_cel_quantity('self.kvCacheMemory')}.compareTo(quantity('1Mi')) >= 0",
        _kv_cache_is_not_tiny,
        "engine.kvCacheMemory must be at least 1Mi: write it with a unit, such as 64Mi",
        field=".kvCacheMemory",
    ),
    Rule(
        "GRPOJobSpec",
        f"!has(self.engine.kvCacheMemory) || ({_CEL_HAS_PODS} ? {_cel_holds('self.rollout')} : "
        f"{_cel_holds('self.trainer')})",
        _kv_cache_fits,
        "engine.kvCacheMemory must be smaller than the memory limit of the pods that hold it, rollout or "
        "else trainer: lower it or raise that limit",
        field=".engine.kvCacheMemory",
    ),
)

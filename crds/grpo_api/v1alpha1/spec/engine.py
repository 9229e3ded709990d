"""`engine`: vLLM's settings, with the rules about them and the pods."""

import json
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from grpo_api import cel
from grpo_api.model import NOT_STORED, ApiModel
from grpo_api.quantity import Quantity, is_quantity, parse_quantity
from grpo_api.rule import Follows, TextRule, rule
from grpo_api.v1alpha1.spec.fields import ClaimName
from grpo_api.v1alpha1.spec.rollout import RolloutSpec
from grpo_api.v1alpha1.spec.sampling import SamplingSpec
from grpo_api.v1alpha1.spec.trainer import TrainerSpec, TrainerStrategy

MIN_KV_CACHE_BYTES = 2**20
MAX_CPU_WORKERS = 8
"""How many worker processes of one pod vLLM's CPU build can join."""
OWNED_ENGINE_ARGUMENTS = (
    *("model", "tokenizer", "served-model-name", "revision", "dtype", "max-model-len"),
    *("kv-cache-memory-bytes", "gpu-memory-utilization", "logprobs-mode", "load-format", "seed"),
    *("host", "port", "uds", "api-key", "middleware", "root-path", "config", "ssl-keyfile", "ssl-certfile"),
    *("enable-scale-out", "weight-transfer-config", "enable-sleep-mode", "enable-server-load-tracking"),
    *("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "distributed-executor-backend"),
    *("worker-cls", "worker-extension-cls", "trust-remote-code", "disable-uvicorn-access-log"),
    *("no-enable-scale-out", "no-enable-sleep-mode", "no-disable-uvicorn-access-log", "headless"),
    *("nnodes", "node-rank", "master-addr", "master-port"),
)
"""Arguments of vLLM that follow from the spec or that the product relies on."""

EngineArgument = Annotated[
    str,
    Field(max_length=1024),
    Follows(
        TextRule(
            "^--[a-z][a-z0-9-]*(=.*)?$",
            "must be an argument of vLLM: write --NAME or --NAME=VALUE",
        )
    ),
]


@rule(
    cel=f"self.args.all(argument, !argument.startsWith('--') || !{json.dumps(list(OWNED_ENGINE_ARGUMENTS))}"
    ".exists(owned, owned.startsWith(argument.split('=')[0].substring(2))))",
    sentence="engine.args has an argument that follows from the rest of the spec or that weight sync relies "
    "on: remove it, and set the field it belongs to if there is one",
    field=".args",
)
def arguments_are_not_ours(args: tuple[str, ...]) -> bool:
    """No argument, also abbreviated, overrides one that the product relies on."""
    names = [argument[2:].partition("=")[0] for argument in args]
    return not any(owned.startswith(name) for name in names for owned in OWNED_ENGINE_ARGUMENTS)


@rule(
    cel=f"!has(self.kvCacheMemory) || {cel.is_quantity('self.kvCacheMemory')}",
    sentence="engine.kvCacheMemory is not an amount that Kubernetes reads: write a number with a unit, such "
    "as 64Gi, and not 64GB or 1,5",
    field=".kvCacheMemory",
)
def kv_cache_is_a_quantity(kv_cache_memory: str | int | None) -> bool:
    """It is an amount."""
    return kv_cache_memory is None or is_quantity(kv_cache_memory)


@rule(
    cel=f"!has(self.kvCacheMemory) || !{cel.can_compare('self.kvCacheMemory')} || "
    f"{cel.quantity('self.kvCacheMemory')}.compareTo(quantity('1Mi')) >= 0",
    sentence="engine.kvCacheMemory must be at least 1Mi: write it with a unit, such as 64Mi",
    field=".kvCacheMemory",
)
def kv_cache_is_not_tiny(kv_cache_memory: str | int | None) -> bool:
    """A number without a unit would mean bytes, which is most likely a mistake."""
    if kv_cache_memory is None or not is_quantity(kv_cache_memory):
        return True
    return parse_quantity(kv_cache_memory) >= MIN_KV_CACHE_BYTES


@rule(
    cel="!has(self.gpuMemoryUtilization) || !has(self.kvCacheMemory)",
    sentence="engine.gpuMemoryUtilization has no effect with engine.kvCacheMemory, which is the size of "
    "the KV cache: remove one of them",
    field=".gpuMemoryUtilization",
)
def cache_has_one_size(gpu_memory_utilization: float | None, kv_cache_memory: str | int | None) -> bool:
    """vLLM does not look at the share of an engine whose KV cache has a size."""
    return gpu_memory_utilization is None or kv_cache_memory is None


class EngineProcess(StrEnum):
    """Which process a colocated engine lives in."""

    SHARED = "Shared"
    OWN = "Own"


@rule(
    cel="!has(self.process) || self.process != 'Own' || self.tensorParallelSize == 1",
    sentence="engine.tensorParallelSize ({tensorParallelSize}) must be 1 with engine.process Own: set it to "
    "1, or set engine.process to Shared",
    field=".process",
)
def own_process_is_one_worker(process: EngineProcess | None, tensor_parallel_size: int) -> bool:
    """An engine over several ranks would be several processes that have to be started again together."""
    return process is not EngineProcess.OWN or tensor_parallel_size == 1


@rule(
    cel="!has(self.dataParallelSize) || self.dataParallelSize == 1 || "
    "(has(self.expertParallel) && self.expertParallel)",
    sentence="engine.dataParallelSize is for mixture-of-experts models, with engine.expertParallel: set "
    "that to true, or remove dataParallelSize and raise rollout.replicas, which makes any "
    "model sample as much more",
    field=".dataParallelSize",
)
def cores_share_experts(data_parallel_size: int, expert_parallel: bool) -> bool:
    """Copies that share nothing are engines of their own: each can be lost alone."""
    return data_parallel_size == 1 or expert_parallel


@rule(
    cel="!has(self.maxNumSeqs) || !self.args.exists(argument, argument.split('=')[0] == '--max-num-seqs')",
    sentence="engine.maxNumSeqs and --max-num-seqs in engine.args say the same: remove the argument",
    field=".maxNumSeqs",
)
def max_num_seqs_is_said_once(max_num_seqs: int | None, args: tuple[str, ...]) -> bool:
    """The argument alone would leave open how many completions an engine is given."""
    return max_num_seqs is None or all(argument.partition("=")[0] != "--max-num-seqs" for argument in args)


class EngineSpec(ApiModel):
    """vLLM's settings, in both modes."""

    rules = (
        arguments_are_not_ours,
        kv_cache_is_a_quantity,
        kv_cache_is_not_tiny,
        cache_has_one_size,
        own_process_is_one_worker,
        cores_share_experts,
        max_num_seqs_is_said_once,
    )

    tensor_parallel_size: Annotated[int, Field(ge=1, le=64)] = 1
    """Workers of one engine that each compute a part of every layer. In mode Colocated they are training
    processes. In mode Disaggregated they are processes of the rollout pod, each with a GPU, or up to 8 on
    CPU."""
    pipeline_parallel_size: Annotated[int, Field(ge=1, le=64), NOT_STORED] = 1
    """Stages of one engine. Each has a part of the layers and tensorParallelSize workers. Defaults to 1. Only
    in mode Disaggregated."""
    data_parallel_size: Annotated[int, Field(ge=1, le=64), NOT_STORED] = 1
    """Copies within one engine of everything but the experts. Each copy has its own requests, and
    tensorParallelSize times pipelineParallelSize workers. Defaults to 1. More than one needs expertParallel
    and mode Disaggregated."""
    expert_parallel: Annotated[bool, NOT_STORED] = False
    """Give every worker of an engine some of the experts of a mixture-of-experts model as a whole, instead of
    a part of each. Only in mode Disaggregated. vLLM refuses it for a model without experts."""
    process: EngineProcess | None = None
    """Which process a colocated engine runs in. `Shared` (the default) is that of its training rank. `Own` is
    another one in the same container, which is started again when it ends or hangs, while the rank goes
    on."""
    sleep_level: Annotated[int, Field(ge=0, le=2)] | None = None
    """What a colocated engine frees while the trainer computes. 0 frees nothing. 1 frees the KV cache and
    moves the weights to CPU memory. 2 frees both the KV cache and the weights, which the next sync loads
    again. Defaults to 2 where the trainer has GPUs, because every sync loads all weights, and to 1 on CPU,
    where nothing is freed."""

    max_model_len: Annotated[int, Field(ge=8, le=10_000_000)] = 4096
    """Longest prompt plus completion, in tokens."""
    kv_cache_memory: Quantity | None = None
    """Memory for the KV cache of one engine, such as 64Mi, which its workers divide among themselves. Without
    it vLLM decides."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of the memory of each of its GPUs that an engine takes, for its weights, for what it computes
    with, and for the KV cache, which gets the rest. Defaults to 0.9 in rollout pods. In mode Colocated it
    defaults to 0.8 of what policy and optimizer leave free, or to 0.4 of that with sleepLevel 0, where the
    trainer computes beside the engine."""
    max_num_seqs: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Most completions that an engine, or each of its dataParallelSize copies, samples at a time; vLLM's
    argument of this name. An engine in a rollout pod is given no more than that. Without it vLLM decides, and
    an engine is given up to 1024 for each copy on GPUs, and up to 64 on CPU. With `async` an engine is given
    four times as many, and those that find no place wait in it."""
    compiled_cache_claim: ClaimName | None = None
    """PersistentVolumeClaim for what vLLM, torch.compile, Triton and FlashInfer compile, so that a new pod of
    the job finds it. Each job has a folder of its own there. The code in it is run without a check: take a
    claim that nothing else uses and that nobody else can write to. With engines on several nodes it must be
    ReadWriteMany. Without it every pod compiles by itself."""
    args: Annotated[tuple[EngineArgument, ...], Field(max_length=64)] = ()
    """More arguments of `vllm serve`, each as `--name` or `--name=value`. Those that other fields set are
    refused."""

    @property
    def num_cores(self) -> int:
        """Schedulers of one engine, which each have requests of their own."""
        return self.data_parallel_size

    @property
    def num_workers(self) -> int:
        """Workers of one engine, of all cores and in all stages."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.num_cores


_NUM_CORES = "(has(self.engine.dataParallelSize) ? self.engine.dataParallelSize : 1)"
_NUM_WORKERS = (
    "self.engine.tensorParallelSize * "
    "(has(self.engine.pipelineParallelSize) ? self.engine.pipelineParallelSize : 1) * "
    f"{_NUM_CORES}"
)
"""CEL for the same, in rules of the whole spec."""


# About the whole spec


@rule(
    cel="self.sampling.maxTokens < self.engine.maxModelLen",
    sentence="sampling.maxTokens ({sampling.maxTokens}) must be smaller than engine.maxModelLen "
    "({engine.maxModelLen}), or no prompt fits before the completion: lower one or raise the other",
    field=".sampling.maxTokens",
)
def prompt_fits(sampling: SamplingSpec, engine: EngineSpec) -> bool:
    """There is room for a prompt."""
    return sampling.max_tokens < engine.max_model_len


@rule(
    cel=f"has(self.rollout) || {cel.PROCESSES_PER_NODE} % self.engine.tensorParallelSize == 0",
    sentence="engine.tensorParallelSize ({engine.tensorParallelSize}) must divide the training processes of "
    "a node, which share the engines: lower it or change trainer.processesPerNode",
    field=".engine.tensorParallelSize",
)
def engines_share_processes_evenly(
    trainer: TrainerSpec, engine: EngineSpec, rollout: RolloutSpec | None
) -> bool:
    """Every colocated engine has as many training processes as the others."""
    return rollout is not None or trainer.num_processes % engine.tensor_parallel_size == 0


@rule(
    cel="!has(self.engine.process) || !has(self.rollout)",
    sentence="engine.process is about engines in the trainer's pods, and those of rollout pods always have "
    "processes of their own: remove engine.process, or remove rollout",
    field=".engine.process",
)
def process_is_of_colocated_engines(engine: EngineSpec, rollout: RolloutSpec | None) -> bool:
    """No field that says nothing."""
    return engine.process is None or rollout is None


@rule(
    cel="!has(self.engine.process) || self.engine.process != 'Own' || !has(self.trainer.strategy) || "
    f"!(self.trainer.strategy in ['{TrainerStrategy.FSDP2}', '{TrainerStrategy.ZERO3}']) || "
    f"self.trainer.numNodes * {cel.PROCESSES_PER_NODE} == 1",
    sentence="engine.process Own starts an engine again with all weights from its training process, "
    "which with trainer.strategy FSDP2 or ZeRO3 has only a shard of them: remove "
    "engine.process, or set trainer.strategy to DDP",
    field=".engine.process",
)
def own_process_finds_all_weights(engine: EngineSpec, trainer: TrainerSpec) -> bool:
    """Sharded weights are whole only while all training processes read them, at the start of a step."""
    is_sharded = trainer.strategy is not None and trainer.strategy.shards_weights
    is_own = engine.process is EngineProcess.OWN
    return not is_own or not is_sharded or trainer.num_nodes * trainer.num_processes == 1


@rule(
    cel="has(self.rollout) || !has(self.engine.pipelineParallelSize) || "
    "self.engine.pipelineParallelSize == 1",
    sentence="engine.pipelineParallelSize needs mode Disaggregated, because the training processes that "
    "share an engine must all be in the same stage: remove it or add rollout",
    field=".engine.pipelineParallelSize",
)
def colocated_engine_has_one_stage(engine: EngineSpec, rollout: RolloutSpec | None) -> bool:
    """Only an engine with pods of its own has stages."""
    return rollout is not None or engine.pipeline_parallel_size == 1


@rule(
    cel="has(self.rollout) || !has(self.engine.expertParallel) || !self.engine.expertParallel",
    sentence="engine.expertParallel needs mode Disaggregated, because the experts of a colocated engine are "
    "not spread over training processes: remove it and engine.dataParallelSize, or add rollout",
    field=".engine.expertParallel",
)
def colocated_engine_has_whole_experts(engine: EngineSpec, rollout: RolloutSpec | None) -> bool:
    """Only an engine with pods of its own spreads its experts."""
    return rollout is not None or not engine.expert_parallel


@rule(
    cel=f"!has(self.rollout) || {_NUM_CORES} == 1 || !has(self.rollout.nodesPerReplica) || "
    "self.rollout.nodesPerReplica == 1",
    sentence="engine.dataParallelSize needs all workers of an engine in one pod: remove it or "
    "rollout.nodesPerReplica",
    field=".engine.dataParallelSize",
)
def cores_are_in_one_pod(engine: EngineSpec, rollout: RolloutSpec | None) -> bool:
    """The server finds the cores of its own pod only."""
    return rollout is None or engine.num_cores == 1 or rollout.nodes_per_replica == 1


_NUM_ROLLOUT_GPUS = cel.num_gpus("self.rollout.resources")
_NUM_NODES = "(has(self.rollout.nodesPerReplica) ? self.rollout.nodesPerReplica : 1)"


@rule(
    cel=f"!has(self.rollout) || ({_NUM_WORKERS}) % {_NUM_NODES} == 0",
    sentence="rollout.nodesPerReplica must divide the workers of an engine, which are "
    "engine.tensorParallelSize ({engine.tensorParallelSize}) times engine.pipelineParallelSize: change one "
    "of them, so that every pod of a replica has as many workers as the others",
    field=".rollout.nodesPerReplica",
)
def nodes_share_workers_evenly(rollout: RolloutSpec | None, engine: EngineSpec) -> bool:
    """vLLM gives every node as many workers as the others."""
    return rollout is None or engine.num_workers % rollout.nodes_per_replica == 0


@rule(
    cel=f"!{cel.HAS_ROLLOUT_RESOURCES} || {_NUM_ROLLOUT_GPUS} == 0 || "
    f"{_NUM_ROLLOUT_GPUS} * {_NUM_NODES} == {_NUM_WORKERS}",
    sentence="rollout.resources.limits of nvidia.com/gpu must be engine.tensorParallelSize "
    "({engine.tensorParallelSize}) times engine.pipelineParallelSize times engine.dataParallelSize divided "
    "by rollout.nodesPerReplica, because an engine uses as many GPUs: change one of them, or remove the "
    "limit to run on CPU",
    field=".rollout.resources.limits",
)
def engine_uses_every_gpu(rollout: RolloutSpec | None, engine: EngineSpec) -> bool:
    """An engine has all the GPUs it needs, and no GPU is reserved that nothing uses."""
    if rollout is None or rollout.resources.num_gpus == 0:
        return True
    return rollout.resources.num_gpus * rollout.nodes_per_replica == engine.num_workers


@rule(
    cel=f"!{cel.HAS_ROLLOUT_RESOURCES} || {cel.has_gpus('self.rollout')} || "
    f"{_NUM_WORKERS} <= {MAX_CPU_WORKERS} * {_NUM_NODES}",
    sentence="engine.tensorParallelSize ({engine.tensorParallelSize}) times engine.pipelineParallelSize "
    f"times engine.dataParallelSize must be at most {MAX_CPU_WORKERS} on CPU for each pod of a replica: "
    "lower one of them, or set the nvidia.com/gpu limit of rollout.resources",
    field=".engine.tensorParallelSize",
)
def cpu_workers_reach_each_other(rollout: RolloutSpec | None, engine: EngineSpec) -> bool:
    """vLLM's memory that workers of a pod share on CPU has no room for more of them."""
    if rollout is None or rollout.has_gpus:
        return True
    return engine.num_workers <= MAX_CPU_WORKERS * rollout.nodes_per_replica


@rule(
    cel=f"!has(self.engine.gpuMemoryUtilization) || (has(self.rollout) ? {cel.HAS_ROLLOUT_RESOURCES} && "
    f"{cel.has_gpus('self.rollout')} : {cel.has_gpus('self.trainer')})",
    sentence="engine.gpuMemoryUtilization is about GPUs, and the pods with the engines (rollout, or "
    "trainer without rollout) have none: remove it, or set their limit of nvidia.com/gpu",
    field=".engine.gpuMemoryUtilization",
)
def shared_gpu_is_there(engine: EngineSpec, rollout: RolloutSpec | None, trainer: TrainerSpec) -> bool:
    """No field that says nothing."""
    return engine.gpu_memory_utilization is None or (rollout or trainer).has_gpus


def _kv_cache_fits_into(pod: str) -> str:
    """CEL for whether the KV cache fits into a pod. On a GPU it is not in the pod's memory."""
    limits = f"{pod}.resources.limits"
    memory, cache = cel.quantity(f"{limits}['memory']"), cel.quantity("self.engine.kvCacheMemory")
    can_compare = cel.can_compare("self.engine.kvCacheMemory", f"{limits}['memory']")
    is_elsewhere = f"!('memory' in {limits}) || {cel.has_gpus(pod)}"
    return f"({is_elsewhere} || !{can_compare} || {cache}.compareTo({memory}) < 0)"


@rule(
    cel=f"!has(self.engine.kvCacheMemory) || ({cel.HAS_ROLLOUT_RESOURCES} ? "
    f"{_kv_cache_fits_into('self.rollout')} : {_kv_cache_fits_into('self.trainer')})",
    sentence="engine.kvCacheMemory must be smaller than the memory limit of the pods with the engines "
    "(rollout, or trainer without rollout): lower it or raise that limit",
    field=".engine.kvCacheMemory",
)
def kv_cache_fits(engine: EngineSpec, rollout: RolloutSpec | None, trainer: TrainerSpec) -> bool:
    """An engine can fill its cache without running out of memory."""
    wanted, pods = engine.kv_cache_memory, rollout or trainer
    limits = pods.resources.limits
    if wanted is None or "memory" not in limits or pods.has_gpus:
        return True
    return parse_quantity(wanted) < parse_quantity(limits["memory"])

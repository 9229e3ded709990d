"""What vLLM is started with."""

from importlib import import_module
from pathlib import Path
from typing import Any

from grpo_api.contract.run_config import RunConfig, parse_run_config
from grpo_api.v1alpha1.spec import AsyncSpec, EngineProcess, Mode, WeightSyncBackend
from grpo_runtime.engines.vllm.arguments import (
    EXPERT_WORKER,
    IN_PROCESS_ENVIRONMENT,
    RECEIVING_EXTENSION,
    SERVER_ENVIRONMENT,
    STAGE_WORKER,
    engine_environment,
    in_process_arguments,
    server_arguments,
)
from grpo_runtime.settings import EngineNode


def of_server(run: RunConfig, *, is_cpu: bool, **node: Any) -> dict[str, str]:
    """Arguments as a mapping (flags to "")."""
    words = server_arguments(run, model_dir=Path("/m"), is_cpu=is_cpu, host="0.0.0.0", port=8000, **node)
    pairs = {}
    for index, word in enumerate(words):
        if word.startswith("--"):
            following = words[index + 1] if index + 1 < len(words) else "--"
            pairs[word] = "" if following.startswith("--") else following
    return pairs


def changed(run_json: str, **engine: object) -> RunConfig:
    run = parse_run_config(run_json)
    return run.model_copy(update={"engine": run.engine.model_copy(update=engine)})


def test_the_precision_is_the_one_of_the_run_and_never_auto(run_json: str) -> None:
    arguments = of_server(changed(run_json), is_cpu=True)
    assert arguments["--dtype"] == "float32"


def test_on_cpu_a_prefill_is_never_cut_in_two(run_json: str) -> None:
    for max_model_len, wanted in ((256, "4096"), (20_000, "20000")):
        arguments = of_server(changed(run_json, max_model_len=max_model_len), is_cpu=True)
        assert "--no-enable-chunked-prefill" in arguments
        assert arguments["--max-num-batched-tokens"] == wanted


def test_on_cpu_the_cache_is_bounded_even_when_nobody_says_so(run_json: str) -> None:
    arguments = of_server(changed(run_json, kv_cache_memory=None), is_cpu=True)
    assert arguments["--kv-cache-memory-bytes"] == str(256 * 2**20)
    arguments = of_server(changed(run_json, kv_cache_memory="1Gi"), is_cpu=True)
    assert arguments["--kv-cache-memory-bytes"] == str(2**30)


def test_the_pods_of_an_engine_meet_at_the_first_and_only_that_one_has_a_server(run_json: str) -> None:
    run = changed(run_json, tensor_parallel_size=2)
    for index in range(2):
        node = EngineNode(index=index, num_nodes=2, master_addr="rollout-0")
        arguments = of_server(run, is_cpu=True, node=node, rendezvous_port=29600)
        assert (arguments["--nnodes"], arguments["--node-rank"]) == ("2", str(index))
        assert (arguments["--master-addr"], arguments["--master-port"]) == ("rollout-0", "29600")
        assert ("--headless" in arguments) == (index == 1)
    assert "--nnodes" not in of_server(run, is_cpu=True)


def test_the_stages_of_an_engine_share_its_cache_and_on_cpu_have_a_worker_of_ours(run_json: str) -> None:
    run = changed(run_json, kv_cache_memory="64Mi", tensor_parallel_size=2, pipeline_parallel_size=2)
    arguments = of_server(run, is_cpu=True)
    assert arguments["--pipeline-parallel-size"] == "2"
    assert arguments["--kv-cache-memory-bytes"] == str(16 * 2**20)
    assert arguments["--worker-cls"] == STAGE_WORKER
    assert "--worker-cls" not in of_server(run, is_cpu=False)


def test_only_in_asynchronous_training_workers_receive_beside_their_steps(run_json: str) -> None:
    run = parse_run_config(run_json)
    assert "--worker-extension-cls" not in of_server(run, is_cpu=True)
    run = run.model_copy(update={"asynchronous": AsyncSpec(max_staleness=1)})
    assert of_server(run, is_cpu=True)["--worker-extension-cls"] == RECEIVING_EXTENSION
    module, _, name = RECEIVING_EXTENSION.rpartition(".")
    assert hasattr(import_module(module), name)


def test_the_cores_of_an_engine_share_its_cache_and_its_experts(run_json: str) -> None:
    run = changed(run_json, kv_cache_memory="64Mi", data_parallel_size=2, expert_parallel=True)
    on_cpu, on_gpus = of_server(run, is_cpu=True), of_server(run, is_cpu=False)
    for arguments in (on_cpu, on_gpus):
        assert arguments["--data-parallel-size"] == "2"
        assert "--enable-expert-parallel" in arguments
        assert arguments["--kv-cache-memory-bytes"] == str(32 * 2**20)
    assert (on_cpu["--distributed-executor-backend"], on_cpu["--worker-cls"]) == ("uni", EXPERT_WORKER)
    assert on_gpus["--distributed-executor-backend"] == "mp"
    assert "--worker-cls" not in on_gpus


def test_on_cpu_experts_in_several_stages_have_the_worker_of_both(run_json: str) -> None:
    run = changed(run_json, pipeline_parallel_size=2, expert_parallel=True)
    arguments = of_server(run, is_cpu=True)
    assert (arguments["--distributed-executor-backend"], arguments["--worker-cls"]) == ("mp", EXPERT_WORKER)
    assert "--data-parallel-size" not in arguments


def test_a_server_of_one_worker_runs_it_itself_and_one_of_several_starts_them(run_json: str) -> None:
    alone = of_server(changed(run_json), is_cpu=True)
    assert alone["--tensor-parallel-size"] == "1"
    assert "--distributed-executor-backend" not in alone
    several = of_server(changed(run_json, tensor_parallel_size=4), is_cpu=False)
    assert several["--tensor-parallel-size"] == "4"
    assert several["--distributed-executor-backend"] == "mp"


def test_workers_share_out_the_cache_of_their_engine(run_json: str) -> None:
    for cache, wanted in (("64Mi", 32 * 2**20), (None, 128 * 2**20)):
        run = changed(run_json, kv_cache_memory=cache, tensor_parallel_size=2)
        assert of_server(run, is_cpu=True)["--kv-cache-memory-bytes"] == str(wanted)


def test_a_gpu_engine_gets_nothing_that_only_a_cpu_needs(run_json: str) -> None:
    arguments = of_server(changed(run_json, kv_cache_memory=None), is_cpu=False)
    for name in ("--enforce-eager", "--no-enable-chunked-prefill", "--max-num-batched-tokens"):
        assert name not in arguments
    assert "--kv-cache-memory-bytes" not in arguments
    assert "OMP_NUM_THREADS" not in engine_environment(is_cpu=False)


def test_threads_are_counted_before_torch_is_imported_and_the_hub_is_left_for_the_model() -> None:
    first = engine_environment(is_cpu=True)
    assert first["OMP_NUM_THREADS"] == "1"
    assert "HF_HUB_OFFLINE" not in first
    assert SERVER_ENVIRONMENT == {"VLLM_SERVER_DEV_MODE": "1", "HF_HUB_OFFLINE": "1"}


def test_the_guard_and_the_sync_backend_are_always_there(run_json: str) -> None:
    for is_cpu in (True, False):
        arguments = of_server(changed(run_json), is_cpu=is_cpu)
        assert arguments["--middleware"] == "grpo_runtime.engines.serve.guard.Guard"
        assert arguments["--weight-transfer-config"] == '{"backend": "gloo"}'
        assert arguments["--logprobs-mode"] == "processed_logprobs"


def test_engine_args_reach_vllm_last_in_both_modes(run_json: str) -> None:
    run = changed(run_json, args=("--max-num-seqs=8", "--enable-prefix-caching"))
    server = server_arguments(run, model_dir=Path("/m"), is_cpu=True, host="0.0.0.0", port=8000)
    in_process = in_process_arguments(run, model_dir=Path("/m"), is_cpu=True, gpu_memory_utilization=0.5)
    for made in (server, in_process):
        assert made[-2:] == ("--max-num-seqs=8", "--enable-prefix-caching")


def test_an_engine_in_the_training_processes_starts_none_of_its_own(run_json: str) -> None:
    run = changed(run_json, tensor_parallel_size=2)
    weight_sync = run.weight_sync.model_copy(update={"backend": WeightSyncBackend.IN_PROCESS})
    run = run.model_copy(update={"mode": Mode.COLOCATED, "weight_sync": weight_sync})
    made = in_process_arguments(run, model_dir=Path("/m"), is_cpu=True, gpu_memory_utilization=0.5)
    words = list(made)
    assert words[words.index("--distributed-executor-backend") + 1] == "external_launcher"
    assert words[words.index("--tensor-parallel-size") + 1] == "2"
    assert words[words.index("--weight-transfer-config") + 1] == '{"backend": "in_process"}'
    assert IN_PROCESS_ENVIRONMENT["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert "--host" not in words
    # the trainer may have a dataset to download
    assert "HF_HUB_OFFLINE" not in IN_PROCESS_ENVIRONMENT


def test_an_engine_beside_its_rank_is_one_worker_without_a_launcher(run_json: str) -> None:
    run = changed(run_json, process=EngineProcess.OWN).model_copy(update={"mode": Mode.COLOCATED})
    words = list(in_process_arguments(run, model_dir=Path("/m"), is_cpu=True, gpu_memory_utilization=0.5))
    assert "--distributed-executor-backend" not in words


def test_sleep_needs_a_pool_of_memory_that_only_a_gpu_has(run_json: str) -> None:
    for level, is_cpu, is_there in ((1, False, True), (2, False, True), (0, False, False), (1, True, False)):
        run = changed(run_json, sleep_level=level)
        made = in_process_arguments(run, model_dir=Path("/m"), is_cpu=is_cpu, gpu_memory_utilization=0.5)
        assert ("--enable-sleep-mode" in made) == is_there


def test_an_engine_on_gpus_takes_a_share_of_them_and_one_on_cpu_does_not(run_json: str) -> None:
    shares = [
        of_server(changed(run_json, gpu_memory_utilization=named), is_cpu=False)["--gpu-memory-utilization"]
        for named in (None, 0.5)
    ]
    assert shares == ["0.9", "0.5"]
    assert "--gpu-memory-utilization" not in of_server(changed(run_json), is_cpu=True)
    beside = in_process_arguments(
        changed(run_json), model_dir=Path("/m"), is_cpu=False, gpu_memory_utilization=0.437
    )
    assert beside[beside.index("--gpu-memory-utilization") + 1] == "0.437"


def test_vllm_decides_how_many_completions_it_samples_unless_the_job_says(run_json: str) -> None:
    assert "--max-num-seqs" not in of_server(changed(run_json), is_cpu=False)
    named = changed(run_json, max_num_seqs=9)
    assert of_server(named, is_cpu=True)["--max-num-seqs"] == "9"
    assert "--max-num-seqs 9" in " ".join(
        in_process_arguments(named, model_dir=Path("/m"), is_cpu=True, gpu_memory_utilization=0.9)
    )

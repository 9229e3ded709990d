"""`python threads_beside_an_engine.py RUN_CONFIG MODEL_FOLDER` starts vLLM in a process that trains with
three threads, gives vLLM its weights, samples, and prints how many threads each had."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from grpo_runtime.engines.vllm.arguments import IN_PROCESS_ENVIRONMENT, engine_environment

os.environ.update(engine_environment(is_cpu=True) | IN_PROCESS_ENVIRONMENT)

# this is run as a script, which finds no other folder of tests
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from policy_builder import changed_policy, weights_of

from grpo_api.contract.run_config import parse_run_config
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.engines.colocated.rank_engine import RankEngine
from grpo_runtime.engines.vllm.local_engine import VllmEngine
from grpo_runtime.model.tiny import write_tiny_model
from grpo_runtime.rollouts.interface import GenerateRequest
from grpo_runtime.torch_threads import num_engine_threads, pin_num_threads
from grpo_runtime.trainer.distributed import Ranks, StopRequest
from grpo_runtime.weight_sync.registry import IN_PROCESS


class CountingEngine(VllmEngine):
    """Notes the threads with which each completion was sampled."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.num_threads: set[int] = set()

    def sample_each(self, requests):  # type: ignore[no-untyped-def]
        for finished in super().sample_each(requests):
            self.num_threads.add(torch.get_num_threads())
            yield finished


def main(config: Path, model_folder: Path) -> None:
    """Be the only rank."""
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    os.environ.update(place | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"})
    pin_num_threads(3)
    write_tiny_model(model_folder)
    ranks = Ranks.meet(rank=0, world_size=1, address="127.0.0.1", port=0, backend="gloo", stop=StopRequest())
    run_config = parse_run_config(config.read_text())
    engine = CountingEngine(run_config, model_dir=model_folder, name="rank-0")
    before = torch.get_num_threads()
    of_rank = RankEngine(
        engine,
        backend=IN_PROCESS,
        sleep_level=0,
        timeout_seconds=60,
        num_threads=num_engine_threads(run_config),
    )
    weights = weights_of(changed_policy(model_folder, seed=1))
    requests = [GenerateRequest(prompt_ids=(5, 6, 7), seed=seed) for seed in range(4)]
    # in a thread of its own, as in a rank
    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(of_rank.sync, weights, version=PolicyVersion(1, 0), probe=None).result()
        assert len(thread.submit(of_rank.generate, requests).result()) == len(requests)
    [sampling] = engine.num_threads
    print(f"trainer {before}, engine {sampling}, trainer {torch.get_num_threads()}", flush=True)
    assert ranks.world_size == 1
    os._exit(0)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

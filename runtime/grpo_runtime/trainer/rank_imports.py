"""What a training process is made of, imported before there is one."""

import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from grpo_api.v1alpha1.spec import Mode
from grpo_runtime.model.source import import_for
from grpo_runtime.serve.vllm_args import IN_PROCESS_ENVIRONMENT, engine_environment, is_cpu_build
from grpo_runtime.settings import read_trainer_settings
from grpo_runtime.trainer.nursery import RunRank

_BEFORE_A_FORK = {
    # numpy starts as many threads as this says, and no fork would have them
    "OMP_NUM_THREADS": "1",
    # else whoever asks whether there is a GPU makes it unusable for forks
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}


def import_rank(*, run_dir: Path) -> RunRank:
    """Import what a rank will need, and return what it does. In mode Colocated also vLLM.

    Raises UserError as `read_trainer_settings` does.
    """
    run = read_trainer_settings(os.environ).run
    is_colocated = run.mode == Mode.COLOCATED
    if is_colocated:
        os.environ.update(engine_environment(is_cpu=is_cpu_build()) | IN_PROCESS_ENVIRONMENT)
    with _environment(_BEFORE_A_FORK):
        if is_colocated:
            import grpo_runtime.rollout.vllm_in_process
        import grpo_runtime.rollout.fleet  # noqa: F401 - so that no rank has to
        from grpo_runtime.trainer.rank import run_rank

        import_for(run.model)
    return functools.partial(run_rank, run_dir=run_dir)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set `variables` for this process until the end of the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value

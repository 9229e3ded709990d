"""What a training process is made of, imported before there is one."""

import functools
import os
from collections.abc import Mapping
from pathlib import Path

from grpo_api.v1alpha1.spec import Mode
from grpo_runtime.serve.vllm_args import IN_PROCESS_ENVIRONMENT, engine_environment, is_cpu_build
from grpo_runtime.settings import read_trainer_settings
from grpo_runtime.trainer.nursery import Become


def import_rank(environment: Mapping[str, str], *, run_dir: Path) -> Become:
    """Import what a rank will need, and return what it does. In mode Colocated also vLLM.

    Raises UserError as `read_trainer_settings` does.
    """
    if read_trainer_settings(environment).run.mode == Mode.COLOCATED:
        # read while torch and vLLM are imported
        os.environ.update(engine_environment(is_cpu=is_cpu_build()) | IN_PROCESS_ENVIRONMENT)
        import grpo_runtime.rollout.vllm_in_process
    import grpo_runtime.rollout.fleet  # noqa: F401 - so that no rank has to
    from grpo_runtime.trainer.rank import run_rank

    return functools.partial(run_rank, run_dir=run_dir)

"""Imports what a training process needs, once, before the ranks are forked."""

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from grpo_api.v1alpha1.spec import Mode
from grpo_runtime.engines.registry import engine_kind
from grpo_runtime.model.source import import_for
from grpo_runtime.settings import read_trainer_settings

_BEFORE_A_FORK = {
    # numpy starts as many threads as this says, and no fork would have them
    "OMP_NUM_THREADS": "1",
    # otherwise the question whether there is a GPU initialises CUDA, and forks could not use it
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}


def import_rank(*, run_dir: Path) -> Callable[[Mapping[str, str]], NoReturn]:
    """Import what a rank will need, and return what it does. In mode Colocated also the engine's library,
    unless the engines have processes of their own, which import it themselves.

    Raises UserError as `read_trainer_settings` does.
    """
    run_config = read_trainer_settings(os.environ).run_config
    holds_engines = run_config.mode is Mode.COLOCATED and not run_config.engine_has_own_process
    kind = engine_kind()
    if holds_engines:
        os.environ.update(kind.colocated_environment())
    with _environment(_BEFORE_A_FORK):
        if holds_engines:
            kind.import_colocated()
        import grpo_runtime.engines.fleet.fleet  # noqa: F401 - so that no rank has to
        from grpo_runtime.trainer.rank import run_rank

        import_for(run_config.model)
        if run_config.model.lora is not None:
            import peft  # noqa: F401 - so that no rank has to
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

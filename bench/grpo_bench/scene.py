"""The processes of a job on this machine, as `grpo-runtime run` would have them. No torch here."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from grpo_api.v1alpha1.job import parse_job
from grpo_bench.errors import BenchError
from grpo_runtime.local.documents import pick_job, read_documents
from grpo_runtime.local.environments import inherited
from grpo_runtime.local.last_words import last_words
from grpo_runtime.local.processes import Household
from grpo_runtime.local.scene import Programs, Scene
from grpo_runtime.local.workspace import Workspace

EXAMPLE = Path(__file__).parents[2] / "examples" / "copy-disaggregated.yaml"
_LOG_CHARACTERS = 4000


@contextmanager
def scene_of_example() -> Iterator[Scene]:
    """The copy example in a directory of its own; its processes and files are gone afterwards, also when this
    process is asked to stop."""
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, lambda number, _: sys.exit(128 + number))
    job = parse_job(pick_job(read_documents(EXAMPLE), path=EXAMPLE).data)
    with TemporaryDirectory(prefix="grpo-bench-") as folder:
        workspace = Workspace(Path(folder))
        with workspace.held(), workspace.drawn_tokens():
            scene = Scene(
                run=workspace.begin(job),
                workspace=workspace,
                household=Household(),
                programs=Programs(),
                environment=_environment(),
                say=print,
            )
            try:
                yield scene
            finally:
                scene.household.end_all()


def require_all_alive(scene: Scene) -> None:
    """Raises BenchError, with the end of its log, when a process has ended."""
    for death in scene.household.reap():
        words = last_words(death, termination_log=scene.workspace.termination_log(death.name))
        log = scene.workspace.log(death.name).read_text(errors="replace")
        raise BenchError(f"{death.name} ended: {words.message}\n{log[-_LOG_CHARACTERS:]}")


def _environment() -> dict[str, str]:
    """The shell's, without a cache of vLLM that pods would not have."""
    return {name: value for name, value in inherited(os.environ).items() if name != "VLLM_CACHE_ROOT"}

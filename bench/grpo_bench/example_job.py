"""The processes of a job on this machine, as `grpo-runtime run` would have them. No torch here."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from grpo_api.contract.weight_sync_choice import with_backend
from grpo_api.v1alpha1.job import parse_job
from grpo_api.v1alpha1.spec import WeightSyncBackend
from grpo_bench.errors import BenchError
from grpo_runtime.local.context import LocalContext, Programs
from grpo_runtime.local.documents import pick_job, read_documents
from grpo_runtime.local.environments import inherited
from grpo_runtime.local.gpus import GpuShares
from grpo_runtime.local.process_table import ProcessTable, outcome_of
from grpo_runtime.local.workspace import Workspace

EXAMPLE = Path(__file__).parents[2] / "examples" / "copy-disaggregated.yaml"
_LOG_CHARACTERS = 4000


@contextmanager
def context_of_example(backend: WeightSyncBackend = WeightSyncBackend.GLOO) -> Iterator[LocalContext]:
    """The copy example in a directory of its own, with a weight sync, by default the one that its pods have.
    Its processes and files are removed afterwards, also when this process is asked to stop."""
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, lambda number, _: sys.exit(128 + number))
    job = parse_job(pick_job(read_documents(EXAMPLE), path=EXAMPLE).data)
    job = job.model_copy(update={"spec": with_backend(job.spec, backend)})
    with TemporaryDirectory(prefix="grpo-bench-") as folder:
        workspace = Workspace(Path(folder))
        with workspace.held(), workspace.fresh_tokens():
            context = LocalContext(
                run_config=workspace.begin(job),
                workspace=workspace,
                processes=ProcessTable(),
                programs=Programs(),
                environment=_environment(),
                gpus=GpuShares.of(job, ()),
                say=print,
            )
            try:
                yield context
            finally:
                context.processes.end_all()


def require_all_alive(context: LocalContext) -> None:
    """Raises BenchError, with the end of the log, when a process has ended."""
    for process_exit in context.processes.collect_exits():
        name = process_exit.name
        outcome = outcome_of(process_exit, termination_log=context.workspace.termination_log(name))
        log = context.workspace.log(name).read_text(errors="replace")
        raise BenchError(f"{name} ended: {outcome.termination.message}\n{log[-_LOG_CHARACTERS:]}")


def _environment() -> dict[str, str]:
    """The shell's environment, without a cache of vLLM that pods would not have."""
    return {name: value for name, value in inherited(os.environ).items() if name != "VLLM_CACHE_ROOT"}

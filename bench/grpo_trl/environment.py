"""TRL's own environment in this project's cache, made once for each set of requirements."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from grpo_bench.errors import BenchError
from grpo_sync.progress import say

REQUIREMENTS = Path(__file__).parents[1] / "requirements-trl.txt"


def trl_python() -> Path:
    """The Python of the environment, which is made unless it is there. Raises BenchError without uv."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grpo-operator"
    key = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    # those that were not used for two weeks are removed by `make setup`
    environment = cache / "environments" / f"trl-{key}"
    environment.parent.mkdir(parents=True, exist_ok=True)
    with (environment.parent / "lock-trl").open("w") as lock:
        # two checkouts may measure at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (environment / "complete").exists():
            _make(environment, uv=_uv(cache))
        environment.touch()
    return environment / "bin" / "python"


def _uv(cache: Path) -> str:
    found = shutil.which("uv") or shutil.which("uv", path=str(cache / "uv" / "bin"))
    if found is None:
        raise BenchError("TRL's environment is made by uv, which is not here: run `make setup`")
    return found


def _make(environment: Path, *, uv: str) -> None:
    say(f"installing TRL into {environment} (6 GB, most of it shared with .venv)")
    python = str(environment / "bin" / "python")
    for command in (
        (uv, "venv", "--quiet", "--clear", "--python", "3.11", str(environment)),
        (
            *(uv, "pip", "install", "--quiet", "--python", python, "--no-deps", "--require-hashes"),
            *("--compile-bytecode", "--requirements", str(REQUIREMENTS)),
        ),
    ):
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise BenchError(f"TRL cannot be installed: {done.stderr.strip()}")
    # last, so that an environment whose making was interrupted is made again
    (environment / "complete").touch()

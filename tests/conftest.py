"""Options of all tests, and what only one test process can have."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from grpo_runtime.process.lasting_imports import lasting_imports
from grpo_runtime.process.network import bound_name_lookups

if TYPE_CHECKING:
    from grpo_runtime.trainer.distributed import Ranks

# as every process of the product: a test that meets at a TCPStore waits for DNS too
bound_name_lookups()
# how long an example takes says nothing on a machine that does other things too
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

SLOW = ("engine", "apiserver", "gpu", "processes")
"""Markers that must be written in the files of their tests, so that other files need not be imported."""

RUNTIME_TESTS = Path(__file__).parent / "runtime"
LONGEST = [
    "trainer/test_journal_kills",
    "trainer/test_async_kills",
    "weight_sync/test_losses",
    "trainer/test_colocated_journal_kills",
    "weight_sync/test_backend_contract",
    "memory_plan/test_formulas",
    "local/test_local_run",
    "engines/colocated/test_recovering_engine",
    "trainer/test_partition_invariance",
    "supervisor/test_supervisor",
    "weight_sync/test_vllm_native",
    "trainer/test_sharded_strategies",
    "trainer/test_trainer_pod",
    "engines/fleet/test_hung_engines",
    "trainer/test_reading",
    "trainer/test_device",
    "weight_sync/test_slow_engines",
    "model/test_families",
    "trainer/test_resume_from",
    "weight_sync/test_sparse_sync",
    "rewards/test_classifier",
    "rewards/test_builtin",
]
"""Files of the runtime that run first, in this order: some compute while others wait for deadlines."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the golden files anew from what the code makes; then read the diff",
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector: importing the tests imports nearly everything."""
    with lasting_imports():
        return (yield)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore files without tests that `-m` asks for: importing all files takes many seconds.

    With `-m engine`, or `-m "engine and ..."`, those are the files that do not name the marker; with `-m "not
    engine"` those whose tests all have it.
    """
    if collection_path.suffix != ".py":
        return None
    expression = config.option.markexpr
    wanted = expression.partition(" and ")[0]
    if wanted in SLOW:
        return not is_written_in(collection_path, wanted) or None
    unwanted = (marker for marker in SLOW if f"not {marker}" in expression)
    return any(has_every_test(collection_path, marker) for marker in unwanted) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, as files run side by side. Refuse a test whose marker is not written in
    its file: `-m engine` would silently leave it out."""
    places = {RUNTIME_TESTS / f"{name}.py": place for place, name in enumerate(LONGEST)}
    assert all(path.exists() for path in places)
    items.sort(key=lambda item: places.get(item.path, len(places)))
    for item in items:
        for marker in SLOW:
            if item.get_closest_marker(marker) and not is_written_in(item.path, marker):
                raise pytest.UsageError(f"{item.nodeid} is marked {marker}: write the marker in its file")


@cache
def is_written_in(path: Path, marker: str) -> bool:
    """Whether the file contains the marker."""
    return f"mark.{marker}" in path.read_text()


@cache
def has_every_test(path: Path, marker: str) -> bool:
    """Whether every test of the file has the marker."""
    return (
        re.search(rf"^pytestmark = \[?pytest\.mark\.{marker}\b", path.read_text(), re.MULTILINE) is not None
    )


@pytest.fixture(autouse=True)
def _signals_stay_as_they_were() -> Iterator[None]:
    """What a command does to the signals of its process would reach later tests here: `plot` lets a closed
    pipe end it, and a supervisor blocks signals, which child processes inherit. A fork server that was
    started without SIGCHLD never notices that its children end."""
    pipe_handler = signal.getsignal(signal.SIGPIPE)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    signal.signal(signal.SIGPIPE, pipe_handler)


@pytest.fixture
def is_updating_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden", default=False))


@pytest.fixture(scope="session")
def promtool() -> Path:
    """Prometheus' own checks of metrics and of rules."""
    from grpo_cluster.settings import cache_dir

    program = cache_dir() / "bin" / "promtool"
    if not program.is_file():
        assert os.environ.get("CI") != "true", f"no {program}: `make promtool` installs it"
        pytest.skip("no promtool here: `make promtool` installs it")
    return program


@pytest.fixture(scope="session")
def check_metrics(promtool: Path) -> Callable[[str], str]:
    """What promtool has to say against a /metrics; empty where all is well."""

    def complaints(text: str) -> str:
        command = [str(promtool), "check", "metrics"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout + done.stderr + (f"it ended with {done.returncode}" if done.returncode else "")

    return complaints


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """This process as rank 0 of 1. A process can meet other ranks only once, whichever folder asks."""
    from grpo_runtime.trainer.distributed import Ranks, StopRequest

    assert "RANK" not in os.environ
    met = Ranks.meet(rank=0, world_size=1, address="127.0.0.1", port=0, backend="gloo", stop=StopRequest())
    yield met
    met.leave()

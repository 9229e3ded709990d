"""Real rollout engines for tests marked `engine`: the pod's own entry point, as a process of this machine or
as a fork of one that has imported vLLM. And the end of processes that a failed test left."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from grpo_api.contract.environment import Env, Role
from grpo_api.contract.run_config import RunConfig, run_config_digest
from grpo_api.contract.weight_sync_choice import with_backend
from grpo_api.resolve import resolve
from grpo_api.v1alpha1.job import parse_job
from grpo_runtime.local.ports import free_ports

if TYPE_CHECKING:
    from forks import Fork

# for the helpers beside this file
sys.path.insert(0, str(Path(__file__).parent))

STOP_SECONDS = 60.0


@pytest.fixture(autouse=True)
def no_process_outlives_its_test() -> Iterator[None]:
    from started_processes import end_what_is_left

    yield
    end_what_is_left()


@pytest.fixture(scope="session", autouse=True)
def no_fork_outlives_the_session() -> Iterator[None]:
    from forks import SCRIPT_SERVER, VLLM_SERVER

    yield
    SCRIPT_SERVER.close()
    VLLM_SERVER.close()


def run_config(
    *,
    model_source: str = "builtin://tiny",
    max_model_len: int = 256,
    max_num_seqs: int | None = None,
    kv_cache_memory: str = "64Mi",
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    weight_sync_backend: str | None = None,
    vllm_engine: str | None = None,
    data_parallel_size: int = 1,
    expert_parallel: bool = False,
    sparse_full_every: int | None = None,
    max_staleness: int | None = None,
) -> RunConfig:
    """A small run; its sync deadline is short, so that tests of failures are."""
    sparse = {} if sparse_full_every is None else {"sparse": {"fullEverySteps": sparse_full_every}}
    asynchronous = {} if max_staleness is None else {"async": {"maxStaleness": max_staleness}}
    job = parse_job(
        {
            "apiVersion": "grpo.dev/v1alpha1",
            "kind": "GRPOJob",
            "metadata": {"namespace": "default", "name": "tiny", "uid": "uid-1"},
            "spec": {
                "model": {"source": model_source},
                "dataset": {"source": "builtin://copy"},
                "rewards": [{"name": "match", "builtin": "exact_match"}],
                "algorithm": {"steps": 2},
                "sampling": {"maxTokens": 16},
                "engine": {
                    "maxModelLen": max_model_len,
                    "maxNumSeqs": max_num_seqs,
                    "kvCacheMemory": kv_cache_memory,
                    "tensorParallelSize": tensor_parallel_size,
                    "pipelineParallelSize": pipeline_parallel_size,
                    "dataParallelSize": data_parallel_size,
                    "expertParallel": expert_parallel,
                },
                "weightSync": {"timeoutSeconds": 10, **sparse},
                "rollout": {"lostTimeoutSeconds": 900},
                **asynchronous,
            },
        }
    )
    # also one that no rules of the spec allow between pods
    spec = with_backend(job.spec, weight_sync_backend)
    weight_sync = spec.weight_sync.model_copy(update={"vllm_engine": vllm_engine})
    return resolve(job.model_copy(update={"spec": spec.model_copy(update={"weight_sync": weight_sync})}))


@dataclass
class EngineProcess:
    """A rollout pod without the pod. `model_dir` holds the weights it started with."""

    process: "subprocess.Popen[bytes] | Fork"
    name: str
    port: int
    folder: Path
    data_token: str
    admin_token: str

    @property
    def model_dir(self) -> Path:
        return self.folder / "cache" / "model"

    @property
    def termination_log(self) -> Path:
        return self.folder / "termination-log"

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def is_live(self) -> bool:
        from engine_life import is_live

        return is_live(self.port)

    def wait_until_live(self) -> None:
        from engine_life import wait_until_live

        wait_until_live(self.port, self.process, log=self.folder / "log")

    def stop(self) -> int:
        """SIGTERM and its exit code; a process that does not listen fails the test."""
        self.process.terminate()
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def core_pids(self) -> list[int]:
        """The engine core, behind the server."""
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def kill(self) -> None:
        """SIGKILL to the whole pod."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP_SECONDS)


POD = ("-m", "grpo_runtime.engines.serve.main")


def start_engine(
    folder: Path,
    *,
    name: str,
    port: int = 0,
    run: RunConfig | None = None,
    program: Sequence[str] | None = None,
    is_forked: bool = False,
    variables: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> EngineProcess:
    """Start an engine without waiting for it. Files and tokens go to `folder`. `program` is a script in place
    of the pod's. `variables` and `arguments` are those that not every pod has."""
    folder.mkdir(parents=True, exist_ok=True)
    run_json = (run or run_config()).model_dump_json(by_alias=True)
    (folder / "run.json").write_text(run_json)
    tokens = folder / "tokens"
    tokens.mkdir(exist_ok=True)
    (tokens / "data-token").write_text("data-secret\n")
    (tokens / "admin-token").write_text("admin-secret\n")
    port = port or free_ports(1)[0]
    environment = os.environ | {
        Env.ROLE: Role.ROLLOUT,
        Env.RUN_CONFIG: str(folder / "run.json"),
        Env.RUN_CONFIG_DIGEST: run_config_digest(run_json.encode()),
        Env.TOKENS_DIR: str(tokens),
        Env.CACHE_DIR: str(folder / "cache"),
        Env.VOLUMES_DIR: str(folder / "volumes"),
        Env.INSTANCE: name,
        # empty, as a new pod's is
        "VLLM_CACHE_ROOT": str(folder / "cache" / "vllm"),
        **(variables or {}),
    }
    options = ["--host", "127.0.0.1", "--port", str(port)]
    options += ["--termination-log", str(folder / "termination-log"), *arguments]
    if is_forked:
        from forks import VLLM_COMMAND, VLLM_SERVER

        script, *command = program or (str(VLLM_COMMAND), "rollout")
        forked = VLLM_SERVER.start(
            Path(script),
            *command,
            *options,
            environment=environment,
            output=folder / "log",
            ends_with_test=False,
        )
        return EngineProcess(forked, name, port, folder, "data-secret", "admin-secret")
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, *(program or POD), *options],
            env=environment,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    return EngineProcess(process, name, port, folder, "data-secret", "admin-secret")


@contextmanager
def running_engine(
    folder: Path,
    *,
    name: str,
    port: int = 0,
    is_awaited: bool = True,
    program: Sequence[str] | None = None,
    is_forked: bool = True,
    **run: Any,
) -> Iterator[EngineProcess]:
    """An engine that is live inside the block (unless it is not awaited) and ended after it."""
    engine = start_engine(
        folder, name=name, port=port, run=run_config(**run), program=program, is_forked=is_forked
    )
    with _ended(engine):
        if is_awaited:
            engine.wait_until_live()
        yield engine


@contextmanager
def running_nodes(
    folder: Path, *, name: str, num_nodes: int, **run: Any
) -> Iterator[tuple[EngineProcess, ...]]:
    """The pods of one engine, of which the first is live inside the block; all are ended after it."""
    rendezvous = ("--rendezvous-port", str(free_ports(1)[0]))
    with ExitStack() as stack:
        nodes = []
        for index in range(num_nodes):
            variables = {
                Env.NODES_PER_REPLICA: str(num_nodes),
                Env.NODE_INDEX: str(index),
                Env.MASTER_ADDR: "127.0.0.1",
            }
            started = start_engine(
                folder / str(index),
                name=f"{name}-{index}" if index else name,
                run=run_config(**run),
                variables=variables,
                arguments=rendezvous,
            )
            nodes.append(stack.enter_context(_ended(started)))
        nodes[0].wait_until_live()
        yield tuple(nodes)


@contextmanager
def _ended(engine: EngineProcess) -> Iterator[EngineProcess]:
    """An engine that has been started; nothing of it is left after the block."""
    try:
        yield engine
    finally:
        if engine.process.poll() is None:
            engine.kill()


@pytest.fixture(scope="session")
def start() -> Callable[..., AbstractContextManager[EngineProcess]]:
    """`running_engine`, for fixtures and tests of the folders below."""
    return running_engine


@pytest.fixture(scope="session")
def start_nodes() -> Callable[..., AbstractContextManager[tuple[EngineProcess, ...]]]:
    """`running_nodes`, likewise."""
    return running_nodes


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """One engine for all tests that leave it alive, and a process of its own as a pod's is. Each test speaks
    as an attempt of its own."""
    with running_engine(tmp_path_factory.mktemp("engine"), name="engine-0", is_forked=False) as started:
        yield started


@contextmanager
def running_asynchronous_engine(folder: Path, *, name: str) -> Iterator[EngineProcess]:
    """An engine for asynchronous training, whose completions may be longer than those of the built-in model.
    It samples 4 at a time, and its KV cache has 47 blocks of 128 tokens for them, fewer than 4 of the longest
    completions need."""
    from grpo_runtime.model.tiny import write_tiny_model

    model, max_model_len = folder / "cache" / "model", 2048
    write_tiny_model(model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": max_model_len}))
    with running_engine(
        folder,
        name=name,
        model_source=f"file://{model}",
        max_staleness=1,
        max_model_len=max_model_len,
        max_num_seqs=4,
        kv_cache_memory="6Mi",
    ) as started:
        yield started


@pytest.fixture(scope="session")
def start_asynchronous() -> Callable[..., AbstractContextManager[EngineProcess]]:
    """`running_asynchronous_engine`, for fixtures and tests of the folders below."""
    return running_asynchronous_engine


@pytest.fixture(scope="session")
def asynchronous_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """One for all tests of asynchronous training that leave it alive."""
    folder = tmp_path_factory.mktemp("asynchronous")
    with running_asynchronous_engine(folder, name="engine-asynchronous") as started:
        yield started


@pytest.fixture(scope="session")
def attempts() -> Iterator[int]:
    """Attempts that rise over the whole session: engines refuse a lower one than they have heard."""
    return iter(range(1, 10_000))


@pytest.fixture
def attempt(attempts: Iterator[int]) -> int:
    """An attempt that nobody used before."""
    return next(attempts)


@pytest.fixture
def pod_environment(tmp_path: Path, run_json: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a rollout pod, in which a `FakeEngine` can be made."""
    from guard_environment import guard_environment

    for name, value in guard_environment(tmp_path, run_json=run_json).items():
        monkeypatch.setitem(os.environ, name, value)


@pytest.fixture
def run_json() -> str:
    """A RunConfig as the operator writes it."""
    return run_config().model_dump_json(by_alias=True)

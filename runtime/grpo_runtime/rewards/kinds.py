"""Every kind of reward, by the field of `rewards[]` that asks for it; there is no other list of them.

To add one, write what it calls and its caller, and add a row here. A kind that is called in worker processes
says how a worker loads it, and has the caller of the others. Rows import what they need when it is needed: a
worker has one kind only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from grpo_runtime.process.user_code import FunctionFile, load_file, load_function
from grpo_runtime.rewards.builtin import BUILTIN_REWARDS, make_builtin
from grpo_runtime.rewards.chunk import Column
from grpo_runtime.rewards.types import (
    BuiltinFunction,
    BuiltinOptions,
    ImportedFunction,
    Outage,
    RewardFunction,
    RewardModel,
    RewardRequest,
    RewardService,
)

if TYPE_CHECKING:  # workers need nothing of the spec
    from grpo_api.contract.run_config import ResolvedReward, RunConfig

FIELD = "rewards"
"""Which errors name."""
MODEL_START_TIMEOUT_SECONDS = 1200.0
"""Covers the reading of a reward model's weights from a slow volume. Other ranks wait meanwhile, for at most
half an hour."""


@dataclass(frozen=True)
class RunOfRewards:
    """What a kind may need of the run: its configuration, and where volumes are mounted."""

    config: "RunConfig"
    volumes_dir: Path


class Caller(Protocol):
    """Calls one reward function, wherever it is."""

    @property
    def outage(self) -> Outage | None:
        """The outage of the service behind it, if there is one."""
        ...

    async def start(self) -> None:
        """Make ready for the first call. Raises UserError when there is no such function."""
        ...

    async def score(self, request: RewardRequest) -> Column:
        """The rewards of a chunk."""
        ...

    async def close(self) -> None:
        """End what was started."""
        ...


def _in_workers(function: RewardFunction) -> Caller:
    from grpo_runtime.rewards.worker import WorkerGroup

    return WorkerGroup(function)


@dataclass(frozen=True, kw_only=True)
class RewardKind:
    """One kind of reward."""

    source: type
    """The dataclass that says what it calls, which is `RewardFunction.source`."""
    of_spec: "Callable[[ResolvedReward, RunOfRewards], Any]"
    """Makes the function of a reward of the job. Raises UserError when what it names is not there."""
    caller: Callable[[RewardFunction], Caller] = _in_workers
    load: Callable[[Any], Callable[..., Any]] | None = None
    """The function to call, in a worker process; None of a kind that needs none. Raises UserError."""
    is_user_code: bool = False
    """Whether a worker process calls a function of the user."""
    start_timeout_seconds: float | None = None
    """How long a worker may take to start, where that is longer than usual."""
    environment: Callable[[Any], Mapping[str, str]] = lambda _: {}
    """Environment variables that a worker has to start with."""


def reward_functions(run_config: "RunConfig", *, volumes_dir: Path) -> tuple[RewardFunction, ...]:
    """The reward functions that a run asks for. Downloads reward models of the Hub that are not in its cache.

    Raises UserError when there is no model where a reward says."""
    run = RunOfRewards(run_config, volumes_dir)
    return tuple(
        RewardFunction(
            name=reward.name,
            source=_kind_of_spec(reward).of_spec(reward, run),
            timeout_seconds=reward.timeout_seconds,
            max_failure_share=reward.max_failure_share,
            max_failing_steps=reward.max_failing_steps,
            workers=reward.workers,
        )
        for reward in run_config.rewards
    )


def kind_of(function: RewardFunction) -> RewardKind:
    """The kind of a reward function."""
    return next(kind for kind in REWARD_KINDS.values() if kind.source is type(function.source))


def name_of(kind: RewardKind) -> str:
    """The field of `rewards[]` that asks for it."""
    return next(name for name, row in REWARD_KINDS.items() if row is kind)


def _kind_of_spec(reward: "ResolvedReward") -> RewardKind:
    """The schema has exactly one of these fields set."""
    return next(kind for name, kind in REWARD_KINDS.items() if getattr(reward, name) is not None)


def _builtin(reward: "ResolvedReward", run: RunOfRewards) -> BuiltinFunction:
    assert reward.builtin is not None
    options = BuiltinOptions(
        answer_column=run.config.dataset.answer,
        pattern=reward.pattern or "",
        max_tokens=run.config.sampling.max_tokens,
        overlong_tokens=reward.overlong_tokens or 0,
        dataset_source=run.config.dataset.source,
        seed=run.config.algorithm.seed,
    )
    return BuiltinFunction(name=reward.builtin.value, options=options)


def _imported(reward: "ResolvedReward", run: RunOfRewards) -> ImportedFunction:
    assert reward.function is not None
    return ImportedFunction(path=reward.function)


def _file(reward: "ResolvedReward", run: RunOfRewards) -> FunctionFile:
    assert reward.config_map is not None
    return FunctionFile.of_spec(reward.config_map, volumes_dir=run.volumes_dir)


def _service(reward: "ResolvedReward", run: RunOfRewards) -> RewardService:
    service = reward.service
    assert service is not None
    secret = service.secret_volume
    return RewardService(
        url=service.url,
        job=run.config.job.uid,
        secret=service.headers_secret,
        folder=None if secret is None else run.volumes_dir / secret.folder,
    )


def _service_caller(function: RewardFunction) -> Caller:
    from grpo_runtime.rewards.service import ServiceClient

    return ServiceClient(function, function.source)


def _model(reward: "ResolvedReward", run: RunOfRewards) -> RewardModel:
    from grpo_runtime.model.source import existing_model

    model = reward.model
    assert model is not None
    return RewardModel(
        folder=existing_model(
            model.source,
            revision=model.revision,
            hub=run.config.hub,
            volumes_dir=run.volumes_dir,
            field=f"model.source of reward {reward.name}",
        ).folder,
        source=model.source,
        dtype=model.dtype.value,
        batch_size=model.batch_size,
        num_threads=model.threads,
    )


def _load_model(model: RewardModel) -> Callable[..., Any]:
    from grpo_runtime.rewards.classifier import load_classifier

    return load_classifier(model)


REWARD_KINDS: dict[str, RewardKind] = {
    "builtin": RewardKind(
        source=BuiltinFunction,
        of_spec=_builtin,
        load=lambda builtin: make_builtin(builtin.name, options=builtin.options),
        environment=lambda builtin: BUILTIN_REWARDS[builtin.name].environment,
    ),
    "function": RewardKind(
        source=ImportedFunction,
        of_spec=_imported,
        load=lambda imported: load_function(imported.path, field=FIELD),
        is_user_code=True,
    ),
    "config_map": RewardKind(
        source=FunctionFile,
        of_spec=_file,
        load=lambda file: load_file(file, field=FIELD),
        is_user_code=True,
    ),
    "service": RewardKind(source=RewardService, of_spec=_service, caller=_service_caller),
    "model": RewardKind(
        source=RewardModel,
        of_spec=_model,
        load=_load_model,
        start_timeout_seconds=MODEL_START_TIMEOUT_SECONDS,
    ),
}
"""By the field of `rewards[]`, in Python's spelling."""

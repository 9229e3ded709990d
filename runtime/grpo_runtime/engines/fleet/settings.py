"""The settings of a fleet: addresses, deadlines, limits."""

from dataclasses import dataclass, field

from grpo_api.contract.endpoints import ROLLOUT_PORT
from grpo_api.contract.progress import HUNG_REPORTED_AFTER_SECONDS
from grpo_api.contract.run_config import RunConfig
from grpo_api.resolve import SAMPLES_ON_CPU
from grpo_api.v1alpha1.spec import AsyncSpec, KvCache, PauseMode, SamplingSpec
from grpo_runtime.engines.fleet.engine_client import Address
from grpo_runtime.errors import UserError
from grpo_runtime.settings import Tokens, TrainerSettings

GIVEN_WITH_ASYNC = 4
"""In asynchronous training an engine is given so many times the completions that it samples at a time."""


@dataclass(frozen=True)
class Pause:
    """What an engine does with completions that it is sampling when it gets new weights."""

    mode: PauseMode = PauseMode.KEEP
    keeps_cache: bool = False
    """Whether they go on from the keys and values of the weights before."""


KEEP = Pause()


@dataclass(frozen=True)
class FleetSettings:
    """All about a fleet but the backend by which weights travel.

    `sampling` is of completions to train on, and `evaluation` of the others; None where there are none.
    `start_wait_seconds`: how long the first sync waits for all desired engines before it takes those there.
    `empty_wait_seconds`: how long a sync or a step waits while there is no engine at all.
    `hung_after_seconds`: how long an engine may show no sign of life before its requests go elsewhere.
    `first_step_seconds`: the same for the core of an engine that has sampled nothing yet and may compile.
    `hung_reported_after_seconds`: how long an engine must be hung before the progress names it.
    `lost_after_seconds`: how long an engine may be silent before it is called lost.
    `probe_timeout_seconds`: how long one call of a look at an engine may take; two of them, and the time
    between looks, must fit into `hung_after_seconds`.
    `max_in_flight`: samples an engine is given at a time.
    `workers_per_engine`: processes of an engine that take the weights.
    `cores_per_engine`: schedulers of an engine, each with requests of its own.
    `is_asynchronous`: whether weights may change while completions are sampled.
    `pause`: what becomes of those completions then.
    `hand_over_seconds`: how long requests of an engine that is out of service wait for what it has sampled of
    them, where completions go on on another engine.
    """

    hosts: tuple[Address, ...]
    desired: int
    attempt: int
    tokens: Tokens = field(repr=False)
    sampling: SamplingSpec
    sync_timeout_seconds: float
    start_wait_seconds: float = 120.0
    empty_wait_seconds: float = 900.0
    hung_after_seconds: float = 10.0
    first_step_seconds: float = 120.0
    hung_reported_after_seconds: float = HUNG_REPORTED_AFTER_SECONDS
    lost_after_seconds: float = 60.0
    evaluation: SamplingSpec | None = None
    heartbeat_seconds: float = 1.0
    probe_timeout_seconds: float = 3.0
    max_in_flight: int = SAMPLES_ON_CPU
    workers_per_engine: int = 1
    cores_per_engine: int = 1
    is_asynchronous: bool = False
    pause: Pause = KEEP
    hand_over_seconds: float = 3.0


def fleet_settings(trainer: TrainerSettings) -> FleetSettings:
    """The settings for the fleet of a trainer pod.

    Raises UserError when the rollout host is malformed, and in mode Colocated, which has no fleet.
    """
    run_config = trainer.run_config
    if trainer.rollout_host is None or trainer.tokens is None:
        raise UserError(
            f"mode is {run_config.mode.value}: there are no rollout pods that a fleet could be made of"
        )
    return FleetSettings(
        hosts=parse_hosts(trainer.rollout_host),
        desired=run_config.topology.rollout_replicas,
        attempt=trainer.attempt,
        tokens=trainer.tokens,
        sampling=run_config.sampling,
        evaluation=run_config.evaluation_sampling,
        sync_timeout_seconds=run_config.weight_sync.timeout_seconds,
        empty_wait_seconds=run_config.rollout_lost_timeout_seconds,
        max_in_flight=samples_in_flight(run_config),
        workers_per_engine=run_config.engine.num_workers,
        cores_per_engine=run_config.engine.num_cores,
        is_asynchronous=run_config.asynchronous is not None,
        pause=_pause(run_config.asynchronous),
    )


def _pause(asynchronous: AsyncSpec | None) -> Pause:
    if asynchronous is None:
        return KEEP
    return Pause(asynchronous.pause_mode, keeps_cache=asynchronous.kv_cache is KvCache.KEEP)


def samples_in_flight(run_config: RunConfig) -> int:
    """How many samples an engine is given at a time.

    A call is answered when the longest of its completions is finished. A step of synchronous training waits
    for that one anyway. In asynchronous training the places of the others would stay empty until then: the
    engine fills them from what waits in its own queue. With pauseMode Wait it would have to finish all of
    these before it gets weights.
    """
    asynchronous = run_config.asynchronous
    waits = asynchronous is None or asynchronous.pause_mode is PauseMode.WAIT
    times = 1 if waits else GIVEN_WITH_ASYNC
    return times * run_config.max_samples_per_engine


def parse_hosts(text: str) -> tuple[Address, ...]:
    """Read a comma-separated list of `host[:port]`. The port is ROLLOUT_PORT where it is left out.

    In a cluster it is one name, that of the headless Service. Raises UserError.
    """
    hosts = []
    for part in text.split(","):
        host, colon, port = part.strip().rpartition(":")
        if not colon:
            host, port = port, str(ROLLOUT_PORT)
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise UserError(f"rollout host {part.strip()!r} is not understood: write HOST or HOST:PORT")
        hosts.append(Address(host, int(port)))
    return tuple(hosts)

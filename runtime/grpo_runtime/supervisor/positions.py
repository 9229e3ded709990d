"""Positions of the training processes of an attempt, which is what each of them does, as the supervisors of
its pods report them to each other."""

import http.client
import logging
import socket
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pydantic import ValidationError

from grpo_api.contract.endpoints import POSITIONS_PATH, TRAINER_PORT
from grpo_api.model import ApiModel
from grpo_api.v1alpha1.status import ShortText
from grpo_runtime.process.procfs import HELD, kernel_state
from grpo_runtime.report.position import read_positions
from grpo_runtime.settings import TrainerSettings

logger = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 2.0
_MAX_BYTES = 64 * 1024
_ASKED_AT_ONCE = 16
_WAITS = "waits "
_MAX_TOLD = 4


class RankPosition(ApiModel):
    """The position of one training process."""

    rank: int
    """Among those of all pods."""
    state: ShortText
    """Process state as in /proc/PID/stat."""
    doing: ShortText
    """What it does, as a sentence about it without its subject."""

    @property
    def sentence(self) -> str:
        """Where it is, and what holds it if something does."""
        return f"rank {self.rank} {HELD.get(self.state, '{}').format(self.doing)}"

    @property
    def order(self) -> tuple[int, int]:
        """Sort key: processes that block the others come first."""
        return (0 if self.state in HELD else 2 if self.doing.startswith(_WAITS) else 1, self.rank)


class PodPositions(ApiModel):
    """The positions of all training processes of one pod."""

    attempt: int
    node_index: int
    positions: tuple[RankPosition, ...]


def positions_of_pod(settings: TrainerSettings) -> PodPositions:
    """What the training processes of this pod do now."""
    first = settings.node_index * settings.run_config.topology.processes_per_node
    positions = tuple(_positions(settings.run_dir, first_rank=first))
    return PodPositions(attempt=settings.attempt, node_index=settings.node_index, positions=positions)


def _positions(run_dir: Path, *, first_rank: int) -> Iterator[RankPosition]:
    for local_rank, position in read_positions(run_dir).items():
        try:
            state = kernel_state(position.pid)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        yield RankPosition(rank=first_rank + local_rank, state=state, doing=position.doing)


def addresses_of(host: str) -> set[str]:
    """Addresses that a name resolves to. Raises OSError when it does not."""
    return {str(address[0]) for *_, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}


def ask_other_pods(
    settings: TrainerSettings,
    *,
    port: int = TRAINER_PORT,
    resolve: Callable[[str], Collection[str]] = addresses_of,
) -> list[PodPositions]:
    """What the training processes of the other trainer pods of this attempt do, as far as they answer. All
    have one headless Service, by which they find the first."""
    _, _, service = settings.master_addr.partition(".")
    try:
        hosts = resolve(service)
    except OSError as error:
        logger.warning("the other trainer pods cannot be found: %s", error)
        return []
    with ThreadPoolExecutor(max_workers=_ASKED_AT_ONCE) as threads:
        answers = [answer for answer in threads.map(lambda host: _ask(host, port), hosts) if answer]
    return [
        answer
        for answer in answers
        if answer.attempt == settings.attempt and answer.node_index != settings.node_index
    ]


def _ask(host: str, port: int) -> PodPositions | None:
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("GET", POSITIONS_PATH)
        return PodPositions.model_validate_json(connection.getresponse().read(_MAX_BYTES))
    except (OSError, http.client.HTTPException, ValidationError) as error:
        logger.warning("trainer pod at %s does not say where its processes are: %s", host, error)
        return None
    finally:
        connection.close()


def describe(pods: Sequence[PodPositions], *, silent: Sequence[int] = ()) -> str:
    """Where the processes of these pods are, those first that hold the others up, and which pods, by node
    index, were asked and are `silent`."""
    positions = sorted((each for pod in pods for each in pod.positions), key=lambda each: each.order)
    parts = [position.sentence for position in positions[:_MAX_TOLD]]
    if len(positions) > _MAX_TOLD:
        parts.append(f"{len(positions) - _MAX_TOLD} more ranks")
    parts += [f"trainer pod {index} does not answer" for index in silent[:_MAX_TOLD]]
    return "; ".join(parts)

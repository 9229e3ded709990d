"""What the training processes of an attempt are doing, as the supervisors of its pods report to each
other."""

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


class RankPlace(ApiModel):
    """One training process."""

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


class PlacesOfPod(ApiModel):
    """The training processes of one pod."""

    attempt: int
    node_index: int
    places: tuple[RankPlace, ...]


def places_of_pod(settings: TrainerSettings) -> PlacesOfPod:
    """What the training processes of this pod do now."""
    first = settings.node_index * settings.run_config.topology.processes_per_node
    places = tuple(_places(settings.run_dir, first_rank=first))
    return PlacesOfPod(attempt=settings.attempt, node_index=settings.node_index, places=places)


def _places(run_dir: Path, *, first_rank: int) -> Iterator[RankPlace]:
    for local_rank, position in read_positions(run_dir).items():
        try:
            state = kernel_state(position.pid)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        yield RankPlace(rank=first_rank + local_rank, state=state, doing=position.doing)


def addresses_of(host: str) -> set[str]:
    """Addresses that a name resolves to. Raises OSError when it does not."""
    return {str(address[0]) for *_, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}


def ask_other_pods(
    settings: TrainerSettings,
    *,
    port: int = TRAINER_PORT,
    resolve: Callable[[str], Collection[str]] = addresses_of,
) -> list[PlacesOfPod]:
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


def _ask(host: str, port: int) -> PlacesOfPod | None:
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("GET", POSITIONS_PATH)
        return PlacesOfPod.model_validate_json(connection.getresponse().read(_MAX_BYTES))
    except (OSError, http.client.HTTPException, ValidationError) as error:
        logger.warning("trainer pod at %s does not say where its processes are: %s", host, error)
        return None
    finally:
        connection.close()


def describe(pods: Sequence[PlacesOfPod], *, silent: Sequence[int] = ()) -> str:
    """Where the processes of these pods are, those first that hold the others up, and which pods, by node
    index, were asked and are `silent`."""
    places = sorted((place for pod in pods for place in pod.places), key=lambda place: place.order)
    parts = [place.sentence for place in places[:_MAX_TOLD]]
    if len(places) > _MAX_TOLD:
        parts.append(f"{len(places) - _MAX_TOLD} more ranks")
    parts += [f"trainer pod {index} does not answer" for index in silent[:_MAX_TOLD]]
    return "; ".join(parts)

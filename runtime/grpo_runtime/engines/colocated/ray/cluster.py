"""How the ranks bring Ray up: the first pod's node, then those of the others, then the placement group.

All ranks do this together, before any of them has an engine. The first rank of each pod starts the process of
the pod that talks to Ray; the first of all says where the others find Ray.
"""

import importlib.metadata
import ipaddress
import logging
import re
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from grpo_api.contract.exit_codes import ExitCode
from grpo_runtime.engines.colocated.child_messages import receive, send
from grpo_runtime.engines.colocated.engine_process import spawned, start_watched
from grpo_runtime.engines.colocated.rank_messages import Channel, broadcast_message
from grpo_runtime.engines.colocated.ray.layout import LOOPBACK, NodeOptions, RayShape, ray_environment
from grpo_runtime.engines.colocated.ray.node_folder import TOKEN_FILE, NodeFolder, log_tails, write_token
from grpo_runtime.errors import KnownError, UserError
from grpo_runtime.process.lifetime import at_end
from grpo_runtime.rollouts.frames import Frame

logger = logging.getLogger(__name__)

OLDEST_RAY = (2, 52)
"""The first release that has authentication by a token."""
POD_PROCESS = (sys.executable, "-m", "grpo_runtime.engines.colocated.ray.pod_process")
_STEP_SECONDS = 240.0
"""How long the pod's process may take for a step of bringing Ray up; it gives up sooner itself."""
_FOLDER_LINK = "ray"
_ANY_PORT = 9


class RayLostError(KnownError):
    """The Ray node of a pod did not start, or has ended: the next attempt starts another one."""

    exit_code = ExitCode.TRANSIENT


@dataclass(frozen=True)
class RayMember:
    """What a rank knows before Ray is there. `run_dir` is shared by the ranks of a pod, and nothing is in it
    that an attempt before has left; `master_addr` is the first pod's name, and `token` the cluster's."""

    shape: RayShape
    run_dir: Path
    master_addr: str
    token: str = field(repr=False)


def join_ray(member: RayMember, channel: Channel, *, environment: Mapping[str, str]) -> Path:
    """Bring Ray up together with all other ranks; returns the folder in which this pod's node is.

    Raises RayLostError when it does not start, and UserError when the image has no Ray that can be used.
    """
    require_ray()
    per_pod = member.shape.ranks_per_pod
    is_first, is_first_of_pod = channel.rank == 0, channel.rank % per_pod == 0
    pod = _start(member, environment, pod=0, head=None) if is_first else None
    head = _shared_text(pod.wait_for_node() if pod else None, channel)
    if is_first_of_pod and pod is None:
        pod = _start(member, environment, pod=channel.rank // per_pod, head=head)
        pod.wait_for_node()
    if pod is not None:
        pod.wait_for_places()
    _wait_for_all(channel)
    return (member.run_dir / _FOLDER_LINK).resolve(strict=True)


def require_ray(*, find_version: Callable[[str], str] = importlib.metadata.version) -> None:
    """Raises UserError when the image has no Ray, or one that anybody may talk to."""
    try:
        version = find_version("ray")
    except importlib.metadata.PackageNotFoundError:
        raise UserError(
            "colocated.executor is Ray, and this image has no package ray: install it in the image, or set "
            "colocated.executor to Processes"
        ) from None
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST_RAY:
        raise UserError(
            f"colocated.executor is Ray, and ray {version} in this image has no authentication by a token: "
            f"install {OLDEST_RAY[0]}.{OLDEST_RAY[1]} or later in the image, or set colocated.executor to "
            "Processes"
        )


def own_address(master_addr: str) -> str:
    """The address of this pod by which it reaches the first one; LOOPBACK where they are on one machine.
    Nothing is sent. Raises RayLostError when the first one is not found."""
    try:
        found = socket.getaddrinfo(master_addr, _ANY_PORT, type=socket.SOCK_DGRAM)
        family, kind, _, _, first_pod = found[0]
        with socket.socket(family, kind) as probe:
            probe.connect(first_pod)
            address: str = probe.getsockname()[0]
    except OSError as error:
        raise RayLostError(f"Ray cannot reach the first trainer pod, {master_addr}: {error}") from error
    return LOOPBACK if ipaddress.ip_address(address).is_loopback else address


class RayPod:
    """The process of this pod that talks to Ray. It ends with this one."""

    def __init__(
        self, options: NodeOptions, *, environment: Mapping[str, str], command: tuple[str, ...] = POD_PROCESS
    ) -> None:
        """Start it. Raises RayLostError when it ends at once."""
        self._folder = options.folder
        self._has_failed = False
        started, self._watcher = start_watched(
            spawned(command, environment), lambda running: running.process.end(), name="watch-ray"
        )
        self._process, self._connection = started.process, started.connection
        try:
            send(self._connection, {**asdict(options), "folder": str(options.folder)})
        except OSError as error:
            lost = self._failed("Ray ended in this pod while it started; see the log")
            self.close()
            raise lost from error

    def wait_for_node(self) -> str:
        """Wait until the pod's node runs; returns where that of the first pod listens. Raises RayLostError
        when it does not start."""
        head: str = self._next_step()["head"]
        return head

    def wait_for_places(self) -> None:
        """Wait until every bundle has its place, after `wait_for_node`. Raises RayLostError when one has
        none."""
        self._next_step()

    def close(self) -> None:
        """Kill it and all that Ray has started in this pod, and wait until it has ended. If it has ended by
        itself, what Ray's own logs say of it is logged."""
        has_failed = self._has_failed or self._process.has_ended
        self._process.kill()
        self._watcher.join()
        self._connection.close()
        if has_failed:
            log_tails(self._folder)

    def _next_step(self) -> Mapping[str, Any]:
        try:
            if not self._connection.poll(_STEP_SECONDS):
                raise self._failed(f"Ray did not start in this pod within {_STEP_SECONDS:g} s")
            message = receive(self._connection).header
        except (EOFError, OSError) as error:
            raise self._failed("Ray ended in this pod while it started; see the log") from error
        if "error" in message:
            raise self._failed(f"Ray did not start in this pod: {message['error']}")
        return message

    def _failed(self, why: str) -> RayLostError:
        self._has_failed = True
        return RayLostError(why)


def _start(member: RayMember, environment: Mapping[str, str], *, pod: int, head: str | None) -> RayPod:
    address = LOOPBACK if member.shape.num_pods == 1 else own_address(member.master_addr)
    # sockets need a short path
    folder = NodeFolder(Path(tempfile.gettempdir()))
    at_end(folder.remove)
    write_token(folder.path / TOKEN_FILE, member.token)
    (member.run_dir / _FOLDER_LINK).symlink_to(folder.path)
    logger.info("starting Ray in this pod, in %s", folder.path)
    started = RayPod(
        NodeOptions(pod=pod, shape=member.shape, address=address, head=head, folder=folder.path),
        environment=ray_environment(environment, folder=folder.path, address=address),
    )
    # before the folder is removed: what was registered last is called first
    at_end(started.close)
    return started


def _shared_text(text: str | None, channel: Channel) -> str:
    """What rank 0 says, on all ranks."""
    message = None if text is None else [Frame({"text": text}, {})]
    [frame] = broadcast_message(message, channel=channel)
    said: str = frame.header["text"]
    return said


def _wait_for_all(channel: Channel) -> None:
    """Return when every rank is here."""
    import torch

    here = torch.zeros(1, dtype=torch.int64)
    if channel.rank == 0:
        for rank in range(1, channel.world_size):
            channel.receive(here, rank=rank)
    else:
        channel.send(here)
    channel.broadcast(here)

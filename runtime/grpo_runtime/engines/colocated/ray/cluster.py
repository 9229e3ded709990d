"""How the ranks bring Ray up: the first pod's node, then those of the others, then the placement group.

All ranks do this together, before any of them has an engine. The first rank of each pod starts what its pod
needs; the first of all says where the others find Ray.
"""

import importlib.metadata
import ipaddress
import logging
import re
import socket
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from grpo_runtime.engines.colocated.messages import Channel, broadcast_message
from grpo_runtime.engines.colocated.ray.errors import RayLostError
from grpo_runtime.engines.colocated.ray.node_folder import TOKEN_FILE, NodeFolder
from grpo_runtime.engines.colocated.ray.node_settings import LOOPBACK, NodePlace, ray_environment
from grpo_runtime.engines.colocated.ray.placement import RayShape
from grpo_runtime.engines.colocated.ray.ray_pod import RayPod
from grpo_runtime.engines.colocated.ray.token import write_token
from grpo_runtime.errors import UserError
from grpo_runtime.process.at_end import at_end
from grpo_runtime.rollouts.frames import Frame

logger = logging.getLogger(__name__)

OLDEST_RAY = (2, 52)
"""The first release that has authentication by a token."""
_FOLDER_LINK = "ray"
_ANY_PORT = 9


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


def _start(member: RayMember, environment: Mapping[str, str], *, pod: int, head: str | None) -> RayPod:
    address = _address(member)
    # sockets need a short path
    folder = NodeFolder(Path(tempfile.gettempdir()))
    at_end(folder.remove)
    write_token(folder.path / TOKEN_FILE, member.token)
    (member.run_dir / _FOLDER_LINK).symlink_to(folder.path)
    logger.info("starting Ray in this pod, in %s", folder.path)
    started = RayPod(
        NodePlace(pod=pod, shape=member.shape, address=address, head=head, folder=folder.path),
        environment=ray_environment(environment, folder=folder.path, address=address),
    )
    # before the folder is removed: what was registered last is called first
    at_end(started.close)
    return started


def _address(member: RayMember) -> str:
    return LOOPBACK if member.shape.num_pods == 1 else own_address(member.master_addr)


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

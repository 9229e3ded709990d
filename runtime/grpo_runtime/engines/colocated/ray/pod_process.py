"""The process of a pod that talks to Ray: it has the pod's node, and makes an actor for each rank that asks.

It is started as `python -m grpo_runtime.engines.colocated.ray.pod_process PIPE PARENT`: the file descriptor
of its end of a pipe to the first rank of the pod, and that rank's process id, with which it ends. No rank is
itself a driver of Ray: such a process ends without a word when its node does, and Ray takes SIGTERM for
itself.

    rank to pod   {"pod": 0, "head": null, ...}, once; and in a connection for each engine
                  {"rank": 3, "path": "...", "token": "..."}. Its end is the engine's.
    pod to rank   {"head": "10.1.2.3:4567"} when the node runs, {} when every bundle has its place, and
                  {"ended": "..."} when the actor has ended
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any, NoReturn

import ray
from ray._private.node import Node
from ray._private.parameter import RayParams
from ray.util.placement_group import PlacementGroup, get_placement_group, placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from grpo_runtime.engines.colocated.child_messages import receive, send
from grpo_runtime.engines.colocated.ray.actor import EngineActor
from grpo_runtime.engines.colocated.ray.layout import (
    GROUP_NAME,
    NAMESPACE,
    NodeOptions,
    RayShape,
    actor_gpus,
    bundles,
    node_settings,
)
from grpo_runtime.engines.colocated.ray.node_folder import ENGINES_SOCKET
from grpo_runtime.errors import first_line
from grpo_runtime.process.lifetime import die_with

logger = logging.getLogger(__name__)

_PLACED_SECONDS = 180.0
"""How long the bundles may take to find their places: the nodes of all pods have to start."""
_LOOK_SECONDS = 1.0


class PlacementError(Exception):
    """Not every bundle has found its place."""


def main(arguments: Sequence[str]) -> NoReturn:
    """Bring Ray up in this pod, and serve the ranks until the first of them ends, or the node does."""
    descriptor, rank_pid = map(int, arguments)
    die_with(rank_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s ray %(levelname)s %(name)s: %(message)s")
    rank = Connection(descriptor)
    options = _options(receive(rank).header)
    try:
        head = _start_node(options).address
        logger.info("Ray listens at %s", head)
        ray.init(head, namespace=NAMESPACE, log_to_driver=False, configure_logging=False)
        group = _group(options)
        # before any rank learns that it may ask
        listener = Listener(str(options.folder / ENGINES_SOCKET), backlog=options.shape.ranks_per_pod)
        send(rank, {"head": head})
        if not group.wait(_PLACED_SECONDS):
            raise PlacementError(
                f"not every bundle of the placement group was placed after {_PLACED_SECONDS:g} s"
            )
        send(rank, {})
    except Exception as error:
        send(rank, {"error": first_line(error)})
        raise
    while True:
        engine = listener.accept()
        threading.Thread(target=_host, args=(engine, group, options.shape), daemon=True).start()


def _options(message: Mapping[str, Any]) -> NodeOptions:
    return NodeOptions(
        pod=message["pod"],
        shape=RayShape(**message["shape"]),
        address=message["address"],
        head=message["head"],
        folder=Path(message["folder"]),
    )


def _start_node(options: NodeOptions) -> Node:
    """Start the pod's node. The kernel ends its processes with this one, and this one ends with them."""
    node = Node(
        RayParams(**node_settings(options)),
        head=options.head is None,
        shutdown_at_exit=True,
        spawn_reaper=True,
    )
    threading.Thread(target=_end_with, args=(node,), name="watch-node", daemon=True).start()
    return node


def _end_with(node: Node) -> None:
    stopped = threading.Event()
    while not stopped.wait(_LOOK_SECONDS):
        if dead := node.dead_processes():
            names = ", ".join(f"{name} (exit code {process.returncode})" for name, process in dead)
            logger.error("processes of Ray in this pod have ended: %s", names)
            os._exit(1)


def _group(options: NodeOptions) -> PlacementGroup:
    """The placement group of the job, which the first pod makes."""
    if options.head is None:
        made: PlacementGroup = placement_group(bundles(options.shape), strategy="PACK", name=GROUP_NAME)
        return made
    found: PlacementGroup = get_placement_group(GROUP_NAME)
    return found


def _host(rank: Connection, group: PlacementGroup, shape: RayShape) -> None:
    """Make the actor that a rank asks for, and kill it when the rank closes its end."""
    with rank:
        request = receive(rank).header
        # none is kept for a restart: the rank has to give the next one its weights
        make = ray.remote(EngineActor).options(
            num_cpus=1,
            num_gpus=actor_gpus(shape),
            max_restarts=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                group, placement_group_bundle_index=request["rank"]
            ),
        )
        actor: Any = make.remote()
        served = actor.serve.remote(request["path"], request["token"])
        threading.Thread(target=_tell_end, args=(served, rank), daemon=True).start()
        try:
            receive(rank)
        except (EOFError, OSError):
            ray.kill(actor, no_restart=True)


def _tell_end(served: Any, rank: Connection) -> None:
    try:
        ray.get(served)
    except Exception as error:
        try:
            send(rank, {"ended": first_line(error)})
        except OSError:
            # the rank knows already: it has closed its end
            logger.debug("an actor ended after its rank had let it go")


if __name__ == "__main__":
    main(sys.argv[1:])

"""The commands of `python e2e/cluster/cli.py`."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from grpo_cluster import images, lifecycle, persistent_volumes, status
from grpo_cluster.ability import obstacle
from grpo_cluster.binaries import build_all
from grpo_cluster.console import say
from grpo_cluster.prerequisites import ensure_prerequisites
from grpo_cluster.settings import ClusterError, ClusterSettings
from grpo_cluster.versions import MODULES, ON_DEMAND, program_path

Command = Callable[[ClusterSettings, argparse.Namespace], int]


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code: 0, or 1 with a sentence on standard error."""
    options = _parser().parse_args(arguments)
    folder = os.environ.get("GRPO_CLUSTER_FOLDER")
    try:
        settings = ClusterSettings.for_instance(options.instance, state_dir=Path(folder) if folder else None)
        return options.run(settings, options)
    except ClusterError as error:
        say(f"error: {error}")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cli.py", description="A Kubernetes cluster on this machine, without Docker."
    )
    parser.add_argument(
        "--instance",
        type=int,
        default=0,
        help="which cluster, 0 to 9: each has addresses of its own (default 0)",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Command, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        return added

    command("can-run", _can_run, "say whether this machine can run containers; ends with 1 when it cannot")
    command("prerequisites", _prerequisites, "install the Debian packages that are missing")
    build = command("build", _build, "build the programs that are not cached")
    build.add_argument(
        "--only", choices=[module.name for module in ON_DEMAND], help="one that only some tests need, instead"
    )
    up = command("up", _up, "start what does not run yet and wait until it is ready")
    up.add_argument("--nodes", type=int, default=1, help="1, 2, or 0 for the API server alone (default 1)")
    command("down", _down, "end everything; images, keys and logs stay")
    command("status", _status, "show processes, nodes, volumes and images; ends with 1 unless all is well")
    command("kubeconfig", _kubeconfig, "print where the administrator's kubeconfig is")
    path = command("path", _path, "print where a program is, such as kubectl or helm")
    path.add_argument("program")
    load = command("load", _load, "give an image of buildah's storage to every node")
    load.add_argument("image")
    archive = command(
        "load-archive", _load_archive, "give the images of an OCI or docker archive to every node"
    )
    archive.add_argument("file", type=Path)
    layer = command("load-layer", _load_layer, "make an image out of one the nodes have and one more layer")
    layer.add_argument("file", type=Path, help="uncompressed tar of the layer")
    layer.add_argument("--base", required=True, help="the image it goes on top of")
    layer.add_argument("--name", required=True, help="the image that comes out")
    command("recycle-volumes", _recycle, "offer released volumes again, without end (`up` starts this)")
    return parser


def _can_run(_settings: ClusterSettings, _options: argparse.Namespace) -> int:
    why = obstacle()
    print(f"this machine cannot run containers: {why}" if why else "this machine can run containers")
    return 1 if why else 0


def _prerequisites(_settings: ClusterSettings, _options: argparse.Namespace) -> int:
    ensure_prerequisites()
    return 0


def _build(_settings: ClusterSettings, options: argparse.Namespace) -> int:
    build_all([module for module in ON_DEMAND if module.name == options.only] or MODULES)
    return 0


def _up(settings: ClusterSettings, options: argparse.Namespace) -> int:
    lifecycle.up(settings, num_nodes=options.nodes)
    say(f"{settings.name} is up: export KUBECONFIG={settings.kubeconfig}")
    return 0


def _down(settings: ClusterSettings, _options: argparse.Namespace) -> int:
    lifecycle.down(settings)
    return 0


def _status(settings: ClusterSettings, _options: argparse.Namespace) -> int:
    print(status.describe(settings))
    return 0 if status.is_healthy(settings) else 1


def _kubeconfig(settings: ClusterSettings, _options: argparse.Namespace) -> int:
    print(settings.kubeconfig)
    return 0


def _path(_settings: ClusterSettings, options: argparse.Namespace) -> int:
    print(program_path(options.program))
    return 0


def _load(settings: ClusterSettings, options: argparse.Namespace) -> int:
    images.load_image(options.image, settings=settings)
    return 0


def _load_archive(settings: ClusterSettings, options: argparse.Namespace) -> int:
    images.load_oci(options.file, settings=settings)
    return 0


def _load_layer(settings: ClusterSettings, options: argparse.Namespace) -> int:
    images.load_layer(options.file, base=options.base, name=options.name, settings=settings)
    return 0


def _recycle(settings: ClusterSettings, _options: argparse.Namespace) -> int:
    persistent_volumes.recycle_released_volumes(settings)
    return 0

"""The command line: `python -m grpo_operator --help`."""

import argparse
import asyncio
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from grpo_operator.cluster.errors import KubernetesError
from grpo_operator.cluster.kinds import KubeObject
from grpo_operator.operator import run_operator
from grpo_operator.permissions import Permissions
from grpo_operator.settings import (
    HOLD_BACK_SECONDS,
    HOLD_SECONDS,
    MIN_HOLD_BACK_SECONDS,
    GiveBackTimes,
    ProgressRoute,
    Settings,
    parse_peers,
)

RUNTIME_IMAGE_VARIABLE = "GRPO_RUNTIME_IMAGE"
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

_EPILOG = """\
examples:
  # In a cluster: the namespace of the pod, the service account's rights (the Helm chart does this).
  python -m grpo_operator --runtime-image registry.example/grpo-runtime:0.2.0

  # From a shell, on the namespace `team-a` of the cluster of your current context:
  python -m grpo_operator -n team-a --runtime-image registry.example/grpo-runtime:0.2.0

It ends with 0 after SIGTERM or SIGINT, and with 1 and a sentence when it cannot do its work. Starting it
again is always safe: it writes only what is due.
"""


_ALLOWED = (
    ("service-account", "a ServiceAccount that jobs may name in podTemplate", "none"),
    ("annotation", "an annotation of pods, or its beginning with a slash", "those of queues and autoscalers"),
    ("label", "a label of pods, or its beginning with a slash", "those of queues"),
    ("priority-class", "a PriorityClass of pods", "none"),
    ("runtime-class", "a RuntimeClass of pods", "nvidia"),
    ("gang", "a gang scheduler that jobs may name in scheduling.gang, by the name it has there", "none"),
    ("engine-argument", "an argument of vLLM without its dashes", "those that reach nothing outside vLLM"),
)
"""What jobs may ask for by name: the option, what it is, and what is allowed without it."""


def parse(arguments: Sequence[str] | None = None) -> tuple[Settings, argparse.Namespace]:
    """The settings in a command line; exits with 2 and a hint when they are wrong."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if not given.runtime_image:
        parser.error(f"give --runtime-image IMAGE or set {RUNTIME_IMAGE_VARIABLE}")
    if given.reports_from and given.network_policies == "false":
        parser.error("--reports-from is part of the policies that --network-policies=false leaves out")
    if given.namespace_selector and not given.all_namespaces:
        parser.error("--namespace-selector is for --all-namespaces: a namespace that is named is watched")
    namespaces = () if given.all_namespaces else tuple(given.namespace or (_own_namespace(),))
    settings = Settings(
        runtime_image=given.runtime_image,
        namespaces=namespaces,
        namespace_selector=given.namespace_selector,
        kubeconfig=given.kubeconfig,
        context=given.context,
        progress=ProgressRoute(given.progress),
        poll_seconds=given.poll_seconds,
        resync_seconds=given.resync_seconds,
        health_port=given.health_port,
        lease=(_lease_namespace(namespaces), given.lease_name) if given.leader_elect == "true" else None,
        has_network_policies=given.network_policies == "true",
        reports_from=given.reports_from,
        give_back=GiveBackTimes(given.give_back_after_seconds, given.give_back_for_seconds),
        permissions=Permissions(
            service_accounts=tuple(given.allow_service_account),
            has_host_network=given.allow_host_network == "true",
            annotations=tuple(given.allow_annotation),
            labels=tuple(given.allow_label),
            priority_classes=tuple(given.allow_priority_class),
            runtime_classes=tuple(given.allow_runtime_class),
            engine_arguments=tuple(given.allow_engine_argument),
            gangs=tuple(given.allow_gang),
        ),
        has_kueue=given.kueue == "true",
    )
    return settings, given


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="grpo-operator",
        description="Turns GRPOJobs into trainer and rollout pods and keeps their status true.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_cluster_options(parser)
    _add_work_options(parser)
    parser.add_argument("--log-format", choices=["text", "json"], default="text", help="(default: text)")
    parser.add_argument(
        "--log-level", choices=["debug", "info", "warning"], default="info", help="(default: info)"
    )
    return parser


def _add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """Which cluster and namespaces, and which image."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "-n",
        "--namespace",
        action="append",
        metavar="NAME",
        help="namespace to watch; may be repeated (default: the pod's own, or `default` from a shell)",
    )
    where.add_argument("-A", "--all-namespaces", action="store_true", help="watch every namespace")
    parser.add_argument(
        "--namespace-selector",
        default="",
        metavar="SELECTOR",
        help="with -A, leave GRPOJobs alone in namespaces whose labels do not match, such as "
        "grpo.dev/ignored!=true (default: none); needs the right to list and watch namespaces",
    )
    parser.add_argument("--kubeconfig", metavar="FILE", help="default: $KUBECONFIG, then ~/.kube/config")
    parser.add_argument(
        "--context", metavar="NAME", help="context of the kubeconfig (default: its current one)"
    )
    parser.add_argument(
        "--runtime-image",
        metavar="IMAGE",
        default=os.environ.get(RUNTIME_IMAGE_VARIABLE),
        help=f"image of jobs that name none (default: ${RUNTIME_IMAGE_VARIABLE})",
    )


def _add_work_options(parser: argparse.ArgumentParser) -> None:
    """How it works there."""
    parser.add_argument(
        "--progress",
        choices=[route.value for route in ProgressRoute],
        default=ProgressRoute.AUTO.value,
        help="how trainers are asked for progress: by pod address, or through the API server, which needs "
        "the right to get pods/proxy (default: auto, by address inside a cluster)",
    )
    parser.add_argument(
        "--resync-seconds", type=_positive, default=90.0, metavar="S", help="time between full looks (90)"
    )
    parser.add_argument(
        "--poll-seconds", type=_positive, default=2.0, metavar="S", help="time between progress polls (2)"
    )
    parser.add_argument(
        "--give-back-after-seconds",
        type=_positive,
        default=float(HOLD_SECONDS),
        metavar="S",
        help="how long a job keeps nodes that are not enough for it to start, once to twice this long "
        f"(default: {HOLD_SECONDS})",
    )
    parser.add_argument(
        "--give-back-for-seconds",
        type=_hold_back_seconds,
        default=float(HOLD_BACK_SECONDS),
        metavar="S",
        help="how long a job that has given its nodes back makes no pods, once to twice this long, at least "
        f"{MIN_HOLD_BACK_SECONDS} (default: {HOLD_BACK_SECONDS})",
    )
    parser.add_argument(
        "--health-port", type=int, metavar="PORT", help="serve GET /healthz and /metrics here (default: not)"
    )
    parser.add_argument(
        "--leader-elect",
        choices=["true", "false"],
        default="true",
        help="act only while holding a Lease, so that of several operators one works and the others stand by "
        "(default: true)",
    )
    parser.add_argument(
        "--lease-name",
        metavar="NAME",
        default="grpo-operator",
        help="the Lease, in the pod's namespace, or from a shell in the first one watched "
        "(default: grpo-operator)",
    )
    parser.add_argument(
        "--network-policies",
        choices=["true", "false"],
        default="true",
        help="give each job a NetworkPolicy that lets only its own pods reach its pods, except for progress "
        "and metrics (default: true)",
    )
    for name, what, always in _ALLOWED:
        parser.add_argument(
            f"--allow-{name}",
            action="append",
            default=[],
            metavar="NAME",
            help=f"{what}; may be repeated, * for any (always: {always})",
        )
    parser.add_argument(
        "--allow-host-network",
        choices=["true", "false"],
        default="false",
        help="let jobs ask for the network of their nodes in podTemplate, where no NetworkPolicy holds "
        "(default: false)",
    )
    parser.add_argument(
        "--kueue",
        choices=["true", "false"],
        default="false",
        help="look at Kueue for jobs that are in one of its queues (default: false)",
    )
    parser.add_argument(
        "--reports-from",
        type=_peers,
        metavar="JSON",
        help="who may read progress and metrics of a trainer besides the pods of its job, where there are "
        "NetworkPolicies: a list of NetworkPolicyPeers, with the operator's own (default: everyone, because "
        "no selector names the API server, through which an operator outside the cluster reads them)",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the operator; returns the exit code."""
    settings, given = parse(arguments)
    _set_up_logging(level=given.log_level, is_json=given.log_format == "json")
    try:
        asyncio.run(run_operator(settings))
    except KubernetesError as error:
        print(f"grpo-operator: {error}", file=sys.stderr)
        return 1
    return 0


def _positive(text: str) -> float:
    value = float(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return value


def _hold_back_seconds(text: str) -> float:
    value = float(text)
    if value < MIN_HOLD_BACK_SECONDS:
        raise argparse.ArgumentTypeError(
            f"{text} is less than {MIN_HOLD_BACK_SECONDS} s: the scheduler tries another job's pods again up "
            "to 10 s after a node is free, and would find it taken by the job that gave it back"
        )
    return value


def _peers(text: str) -> tuple[KubeObject, ...]:
    try:
        return parse_peers(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _own_namespace() -> str:
    return NAMESPACE_FILE.read_text().strip() if NAMESPACE_FILE.exists() else "default"


def _lease_namespace(watched: Sequence[str]) -> str:
    """The pod's own namespace: the chart grants rights to Leases there and nowhere else."""
    return _own_namespace() if NAMESPACE_FILE.exists() or not watched else watched[0]


class _JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def _set_up_logging(*, level: str, is_json: bool) -> None:
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(_JsonFormatter() if is_json else text)
    logging.basicConfig(level=level.upper(), handlers=[handler])

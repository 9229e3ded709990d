"""The steps of `make demo`, in order."""

import argparse
import re
import time
from pathlib import Path

from grpo_cluster.ability import obstacle
from grpo_cluster.console import say, step
from grpo_cluster.settings import ClusterError
from grpo_demo.follow import condition, follow
from grpo_demo.install import install
from grpo_demo.local import train_locally
from grpo_demo.target import Target, local_target, named_target
from grpo_images.registry import FIND_DIGEST
from grpo_images.sources import REPOSITORY
from grpo_runtime.report.plot import plot

NAMESPACE = "grpo-demo"
EXAMPLES = {"copy": "examples/copy-disaggregated.yaml", "copy-colocated": "examples/copy-colocated.yaml"}
"""Job name -> its file: the same task in both modes."""
_DESCRIPTION = """Install the operator, train the copy example in both modes, and print how it went: in
the local cluster, which it starts, or in one of yours.

for example:
  make demo
  make demo CONTEXT=my-context REGISTRY=registry.example.com/my-team \\
    BASE=python:3.11-slim@sha256:DIGEST"""
_STEP_LINE = re.compile(r"step (\d+)/\d+ .*?\breward (-?[0-9.]+)")


def main() -> int:
    """Returns 0 when all jobs succeeded; otherwise prints what to do and returns 1."""
    parser = argparse.ArgumentParser(
        prog="make demo", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--context", help="a context of your kubeconfig (default: the local cluster)")
    parser.add_argument("--registry", help="where images go, with --context; such as registry.example.com/me")
    parser.add_argument(
        "--base",
        metavar="IMAGE@sha256:DIGEST",
        help=f"base of the images, with --context; `{FIND_DIGEST}` prints a digest",
    )
    parser.add_argument("--timeout", type=float, default=1200, help="seconds for each job (default 1200)")
    options = parser.parse_args()
    if len({bool(options.context), bool(options.registry), bool(options.base)}) > 1:
        parser.error(
            "CONTEXT=, REGISTRY= and BASE= go together: that cluster pulls the images from the registry, and "
            f"they are built on the base, whose digest `{FIND_DIGEST}` prints"
        )
    why = None if options.context else obstacle()
    if why:
        say(f"this machine cannot run containers ({why}): training without a cluster, in local mode")
        return train_locally()
    began = time.monotonic()
    try:
        if options.context:
            target = named_target(options.context, options.registry, base=options.base)
        else:
            target = local_target()
        install(target, NAMESPACE)
        jobs = [
            _run_job(target, name, REPOSITORY / path, timeout_seconds=options.timeout)
            for name, path in EXAMPLES.items()
        ]
    except ClusterError as error:
        say(f"error: {error}")
        return 1
    say(f"    everything took {time.monotonic() - began:.0f} s")
    return 0 if all(condition(job, "Complete") == "True" for job in jobs) else 1


def _run_job(target: Target, name: str, example: Path, *, timeout_seconds: float) -> dict:
    with step(f"apply {example.relative_to(REPOSITORY)}"):
        # A finished job does not train again, so it is deleted first.
        target.run_kubectl(
            "delete", "grpojob", name, "--namespace", NAMESPACE, "--ignore-not-found", "--wait"
        )
        target.run_kubectl("apply", "--namespace", NAMESPACE, "--filename", str(example))
    job = follow(target, name, NAMESPACE, timeout_seconds=timeout_seconds)
    print(target.run_kubectl("get", "grpojobs", name, "--namespace", NAMESPACE))
    if condition(job, "Complete") == "True":
        _print_result(target, name)
    else:
        failure = job["status"].get("lastFailure", {})
        say(f"error: the job failed: {failure.get('reason', '?')}: {failure.get('message', '')}")
        kubectl = " ".join(target.kubectl)
        say(f"    look at it with `{kubectl} describe grpojob {name} --namespace {NAMESPACE}`")
    return job


def _print_result(target: Target, name: str) -> None:
    selector = f"grpo.dev/job={name},grpo.dev/role=trainer,grpo.dev/node-index=0"
    log = target.run_kubectl("logs", "--namespace", NAMESPACE, "--selector", selector, "--tail", "-1")
    rewards = {int(found[1]): float(found[2]) for found in _STEP_LINE.finditer(log)}
    if not rewards:
        raise ClusterError("the trainer's log has no line with a step and a reward")
    print(plot([rewards[number] for number in sorted(rewards)], title=f"{name}: reward by step"))
    last = [rewards[number] for number in sorted(rewards)[-10:]]
    print(f"mean reward of the last {len(last)} steps: {sum(last) / len(last):.3f}")

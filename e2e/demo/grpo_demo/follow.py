"""Shows a job on the screen until it ends: step, reward and pods."""

import sys
import time
from typing import Any

from grpo_cluster.settings import ClusterError
from grpo_demo.target import Target

POLL_SECONDS = 1.0
_BAR_WIDTH = 24


def follow(target: Target, name: str, namespace: str, *, timeout_seconds: float) -> dict[str, Any]:
    """Show the job until it is finished; returns it.

    On a terminal one line is rewritten in place; elsewhere a line is printed whenever it changes.
    Raises ClusterError when the job is not finished in time.
    """
    deadline = time.monotonic() + timeout_seconds
    is_terminal = sys.stdout.isatty()
    began, shown = time.monotonic(), ""
    while time.monotonic() < deadline:
        job = target.get("grpojob", name, "--namespace", namespace)
        pods = target.get("pods", "--namespace", namespace, "--selector", f"grpo.dev/job={name}")["items"]
        line = describe(job.get("status", {}), pods)
        if is_terminal:
            sys.stdout.write(f"\r\033[K{time.monotonic() - began:4.0f} s  {line}")
        elif line != shown:
            sys.stdout.write(f"{time.monotonic() - began:4.0f} s  {line}\n")
        sys.stdout.flush()
        shown = line
        if condition(job, "Finished") == "True":
            sys.stdout.write("\n" if is_terminal else "")
            return job
        time.sleep(POLL_SECONDS)
    raise ClusterError(
        f"job {name} is not finished after {timeout_seconds:.0f} s: {shown}\n"
        f"Look at it with `kubectl describe grpojob {name} --namespace {namespace}`."
    )


def condition(job: dict[str, Any], kind: str) -> str:
    """Status of one of the job's conditions; empty when it has none of that type."""
    conditions = job.get("status", {}).get("conditions", [])
    return next((item["status"] for item in conditions if item["type"] == kind), "")


def describe(status: dict[str, Any], pods: list[dict[str, Any]]) -> str:
    """The job in one line."""
    step, total = status.get("step", 0), status.get("totalSteps", 0)
    done = round(_BAR_WIDTH * step / total) if total else 0
    bar = "█" * done + "·" * (_BAR_WIDTH - done)
    return (
        f"{status.get('phase', 'Pending'):10} {bar} {status.get('progress') or '-':>9}"
        f"  reward {status.get('reward') or '-':>6}  " + "  ".join(sorted(_describe_pod(pod) for pod in pods))
    )


def _describe_pod(pod: dict[str, Any]) -> str:
    labels = pod["metadata"]["labels"]
    index = labels.get("grpo.dev/replica", labels.get("grpo.dev/node-index", "0"))
    ready = any(
        item["type"] == "Ready" and item["status"] == "True" for item in pod["status"].get("conditions", [])
    )
    state = "ready" if ready else pod["status"].get("phase", "Pending").lower()
    return f"{labels['grpo.dev/role']}-{index}:{state}"

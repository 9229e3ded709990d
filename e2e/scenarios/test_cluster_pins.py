"""The versions that the local cluster names are those that its modules build."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cluster"))

from grpo_cluster.versions import (
    DASHBOARD_LINT,
    GANG_SCHEDULER,
    GITOPS_HEALTH,
    KUBERNETES_VERSION,
    KUEUE,
    MODULES,
    PROMETHEUS_OPERATOR,
    GoModule,
)

MAIN_REQUIREMENT = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kubernetes": "k8s.io/kubernetes",
    "coredns": "github.com/coredns/coredns",
    "helm": "helm.sh/helm/v4",
    "gang-scheduler": "sigs.k8s.io/scheduler-plugins",
    "kueue": "sigs.k8s.io/kueue",
    "prometheus-operator": "github.com/prometheus-operator/prometheus-operator",
    "dashboard-lint": "github.com/grafana/grafana-foundation-sdk/go",
    "gitops-health": "github.com/fluxcd/pkg/runtime",
}
PINNED = [
    *(module for module in MODULES if module.name != "pause"),
    *(GANG_SCHEDULER, KUEUE, PROMETHEUS_OPERATOR, DASHBOARD_LINT, GITOPS_HEALTH),
]


@pytest.mark.parametrize("module", PINNED, ids=lambda module: module.name)
def test_a_module_requires_the_version_its_cache_folder_is_named_after(module: GoModule) -> None:
    required = re.search(
        rf"^(?:require)?\s*{re.escape(MAIN_REQUIREMENT[module.name])} (\S+)",
        (module.source / "go.mod").read_text(),
        re.MULTILINE,
    )
    assert required is not None
    assert required[1] == module.version
    assert (module.source / "go.sum").is_file()


@pytest.mark.parametrize("name", ["kubernetes", "gang-scheduler"])
def test_every_staging_module_is_the_release_that_belongs_to_the_kubernetes_version(name: str) -> None:
    module = next(module for module in PINNED if module.name == name)
    staging = re.findall(
        r"^\s+(k8s\.io/\S+) => (\S+) (\S+)$", (module.source / "go.mod").read_text(), re.MULTILINE
    )
    assert len(staging) > 20
    for replaced, replacement, version in staging:
        assert replaced == replacement
        assert version == KUBERNETES_VERSION.replace("v1.", "v0.")


def test_the_linker_flags_have_the_version_of_the_programs() -> None:
    kubernetes = next(module for module in MODULES if module.name == "kubernetes")
    _, minor, _ = KUBERNETES_VERSION.split(".")
    assert f"gitVersion={KUBERNETES_VERSION}" in kubernetes.linker_flags
    assert f"gitMinor={minor}" in kubernetes.linker_flags

"""Which labels and annotations say that a GitOps controller tracks a job."""

import pytest

from grpo_operator.observe.tracking import is_mark, tracked_by


@pytest.mark.parametrize(
    ("labels", "annotations", "found"),
    [
        ({}, {}, ""),
        ({}, {"argocd.argoproj.io/tracking-id": "app:grpo.dev/GRPOJob:default/copy"}, "Argo CD"),
        ({"argocd.argoproj.io/instance": "app"}, {}, "Argo CD"),
        ({}, {"argocd.argoproj.io/instance": "app"}, "Argo CD"),
        ({"kustomize.toolkit.fluxcd.io/name": "jobs"}, {}, "Flux"),
        ({"helm.toolkit.fluxcd.io/name": "jobs"}, {}, "Flux"),
        # of Argo CD before version 3, and of Helm, Kustomize and people, of which Helm says so
        ({"app.kubernetes.io/instance": "app"}, {}, "Argo CD"),
        ({"app.kubernetes.io/instance": "app", "app.kubernetes.io/managed-by": "Helm"}, {}, "Argo CD"),
        ({"app.kubernetes.io/instance": "app"}, {"meta.helm.sh/release-name": "app"}, ""),
        (
            {"app.kubernetes.io/instance": "app"},
            {"meta.helm.sh/release-name": "app", "argocd.argoproj.io/sync-wave": "1"},
            "Argo CD",
        ),
        ({}, {"argocd.argoproj.io/sync-wave": "1"}, ""),
        ({"app.kubernetes.io/managed-by": "Helm"}, {"meta.helm.sh/release-name": "app"}, ""),
    ],
)
def test_what_tracks_a_job(labels: dict[str, str], annotations: dict[str, str], found: str):
    said = tracked_by(labels=labels, annotations=annotations)
    assert said.partition(" (")[0] == found
    seen = {key: value for key, value in annotations.items() if is_mark(key)}
    assert tracked_by(labels=labels, annotations=seen) == said, "the cache keeps what is read"

"""Which GitOps controller tracks an object: one that deletes it has it created again. Pure."""

from collections.abc import Mapping

from grpo_api.contract.labels import INSTANCE

_ARGO_CD = "argocd.argoproj.io/"
_ARGO_MARKS = (f"{_ARGO_CD}tracking-id", f"{_ARGO_CD}instance")
_FLUX_MARKS = ("kustomize.toolkit.fluxcd.io/name", "helm.toolkit.fluxcd.io/name")
_HELM_RELEASE = "meta.helm.sh/release-name"
"""An annotation of what `helm install` creates. An Argo CD that renders a chart does not set it."""


def is_mark(annotation: str) -> bool:
    """Whether an annotation says something about who tracks an object."""
    return annotation.startswith(_ARGO_CD) or annotation in (*_FLUX_MARKS, _HELM_RELEASE)


def tracked_by(*, labels: Mapping[str, str], annotations: Mapping[str, str]) -> str:
    """The controller that tracks an object with these labels and annotations, and the one that says so; empty
    where none does.

    Argo CD before version 3 tracks by the label `app.kubernetes.io/instance` and sets no annotation, and a
    newer one may be told to. Others set that label too, of which Helm says that it did. From anybody else it
    counts: a job that stays by mistake can be deleted, and one that trains again by mistake costs GPUs.
    """
    for name, marks in (("Argo CD", _ARGO_MARKS), ("Flux", _FLUX_MARKS)):
        for mark in marks:
            if mark in labels or mark in annotations:
                return f"{name} ({mark})"
    is_of_helm = _HELM_RELEASE in annotations and not any(key.startswith(_ARGO_CD) for key in annotations)
    return f"Argo CD ({INSTANCE})" if INSTANCE in labels and not is_of_helm else ""

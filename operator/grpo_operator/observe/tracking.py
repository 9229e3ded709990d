"""Which GitOps controller tracks an object: one that deletes it has it created again. Pure."""

from collections.abc import Mapping

from grpo_api.contract.labels import INSTANCE

_ARGO_CD = "argocd.argoproj.io/"
_ARGO_MARKS = (f"{_ARGO_CD}tracking-id", f"{_ARGO_CD}instance")
_FLUX_MARKS = ("kustomize.toolkit.fluxcd.io/name", "helm.toolkit.fluxcd.io/name")


def is_mark(annotation: str) -> bool:
    """Whether an annotation says something about who tracks an object."""
    return annotation.startswith(_ARGO_CD) or annotation in _FLUX_MARKS


def tracked_by(*, labels: Mapping[str, str], annotations: Mapping[str, str]) -> str:
    """The controller that tracks an object with these labels and annotations, and the one that says so; empty
    where none does.

    Argo CD may be told to track by `app.kubernetes.io/instance`, which many other tools set too: that counts
    where an annotation of Argo CD is beside it.
    """
    for name, marks in (("Argo CD", _ARGO_MARKS), ("Flux", _FLUX_MARKS)):
        for mark in marks:
            if mark in labels or mark in annotations:
                return f"{name} ({mark})"
    if INSTANCE in labels and any(key.startswith(_ARGO_CD) for key in annotations):
        return f"Argo CD ({INSTANCE})"
    return ""

"""What can go wrong with a request to Kubernetes.

`client` translates the errors of its library into these, so that nothing above it knows the library.
"""


class KubernetesError(Exception):
    """A request failed. The message is the API server's."""


class NotFound(KubernetesError):
    """The object or the kind does not exist."""


class AlreadyExists(KubernetesError):
    """An object of that name is there already."""


class Conflict(KubernetesError):
    """The object changed since it was read, or is another one than expected."""


class Forbidden(KubernetesError):
    """Refused: missing rights, a quota, Pod Security, or a namespace that is going away."""


class Invalid(KubernetesError):
    """The API server rejects the object's content."""


class Transient(KubernetesError):
    """A retry may succeed: the API server does not answer, is busy or is restarting."""


class ServerFailed(Transient):
    """The API server answered that it failed. Most often an admission webhook is down or too slow, and stays
    so until a person repairs it."""


class VersionsWentBack(KubernetesError):
    """The versions of the cluster's state went back: its store was restored from a backup. What this process
    has cached is newer than the cluster, so only a new process sees what is there."""


def require_no_step_back(version: int, *, known: int) -> None:
    """Raise VersionsWentBack when the API server shows a version below one that it has shown before."""
    if version < known:
        raise VersionsWentBack(
            f"the API server shows version {version} of its state after version {known}: its store was "
            "restored from a backup; this process ends, so that the next one begins with what is there"
        )

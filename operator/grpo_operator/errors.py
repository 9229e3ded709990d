"""What can go wrong when talking to Kubernetes, in our own words.

Nothing above `client` knows the library.
"""


class KubernetesError(Exception):
    """A request failed. The message is the API server's sentence."""


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
    """A retry may cure it: the server is away, busy or restarting."""


class ServerFailed(Transient):
    """The server answered that it failed: most often an admission webhook that is down or too slow, which
    stays so until somebody looks after it."""

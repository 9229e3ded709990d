"""The folder of a pod's Ray node: its sockets, its logs, and the token of the job's Ray cluster. Without the
token nobody may talk to Ray, which unpickles what it is sent."""

import fcntl
import hashlib
import hmac
import logging
import os
import shutil
import tempfile
from collections import deque
from pathlib import Path

logger = logging.getLogger(__name__)

RAY_FOLDER = "ray"
TOKEN_FILE = "token"  # noqa: S105 - a file name
ENGINES_SOCKET = "engines"
"""A Unix socket, at which the ranks of the pod find the process that talks to Ray."""

_PREFIX = "grpo-ray-"
_UNLOCKED = "new-"
_TAIL_LINES = 20
_TOKEN_LABEL = "grpo-ray"  # noqa: S105 - says what the token is for
_LOGS = ("gcs_server.out", "gcs_server.err", "raylet.out", "raylet.err")


class NodeFolder:
    """A new folder, locked until this process ends: one without a lock has lost its owner."""

    def __init__(self, parent: Path) -> None:
        """Make it in `parent`, and remove what owners that were killed have left there."""
        _remove_leftovers(parent)
        # only this user may enter; it gets its name when it is locked
        made = Path(tempfile.mkdtemp(prefix=_UNLOCKED + _PREFIX, dir=parent))
        self._lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.path = made.rename(made.with_name(made.name.removeprefix(_UNLOCKED)))

    def remove(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def log_tails(folder: Path) -> None:
    """Log how the logs of Ray's own processes end: they go with the folder."""
    for name in _LOGS:
        path = folder / RAY_FOLDER / "session_latest" / "logs" / name
        try:
            with path.open(errors="replace") as lines:
                tail = "".join(deque(lines, maxlen=_TAIL_LINES))
        except FileNotFoundError:
            # this node has no such process, or it has not started
            continue
        if tail:
            logger.error("the last lines of Ray's %s:\n%s", name, tail)


def ray_token(admin_token: str, *, attempt: int) -> str:
    """The token of the cluster of an attempt. Who knows it learns nothing of the job's own token."""
    text = f"{_TOKEN_LABEL} {attempt}".encode()
    return hmac.new(admin_token.encode(), text, hashlib.sha256).hexdigest()


def write_token(path: Path, token: str) -> None:
    """Write it where only this user can read it. Raises FileExistsError when there is a file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token)


def _remove_leftovers(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            # another user's, or removed meanwhile
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            logger.debug("%s is in use", folder)
        finally:
            os.close(lock)

"""The token of a job's Ray cluster: without it nobody may talk to Ray, which unpickles what it is told."""

import hashlib
import hmac
import os
from pathlib import Path

_LABEL = "grpo-ray"


def ray_token(admin_token: str, *, attempt: int) -> str:
    """The token of the cluster of an attempt. Who knows it learns nothing of the job's own token."""
    text = f"{_LABEL} {attempt}".encode()
    return hmac.new(admin_token.encode(), text, hashlib.sha256).hexdigest()


def write_token(path: Path, token: str) -> None:
    """Write it where only this user can read it. Raises FileExistsError when there is a file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token)

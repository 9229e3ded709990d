"""Whether this machine can run containers: what the local cluster needs and no package can install."""

import os
import subprocess
from collections.abc import Sequence

from grpo_cluster.cgroups import hierarchies

_PROBE = ("unshare", "--mount", "--net", "--pid", "--fork", "mount", "-t", "tmpfs", "probe", "/run")
"""A mount in namespaces of its own: no other process sees it, and it is gone when the program ends."""


def obstacle(*, user_id: int | None = None, probe: Sequence[str] = _PROBE) -> str | None:
    """Why this machine cannot run containers, as the end of a sentence; None when it can.

    `user_id` is by default that of this process. `probe` is a program that fails where namespaces and mounts
    are not allowed.
    """
    user_id = os.geteuid() if user_id is None else user_id
    if user_id != 0:
        return f"user {user_id} is not root"
    return _no_mounts(probe) or _no_cgroups()


def _no_mounts(probe: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(probe, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return f"there is no program {probe[0]}"
    if done.returncode == 0:
        return None
    return f"namespaces and mounts are not allowed ({done.stderr.strip() or f'exit code {done.returncode}'})"


def _no_cgroups() -> str | None:
    roots = hierarchies()
    if not roots:
        return "no cgroup hierarchy is mounted"
    for root in roots:
        folder = root / f"grpo-probe-{os.getpid()}"
        try:
            folder.mkdir()
            folder.rmdir()
        except OSError as error:
            return f"no cgroup can be made in {root} ({error.strerror})"
    return None

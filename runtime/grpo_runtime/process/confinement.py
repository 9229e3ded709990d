"""Keeps the credentials of a job from the code that its workers run: that of users, and what a policy may
have written.

Workers have the same user as the trainer, so that file modes hide nothing from them. They get an environment
without the credentials, and before they load any code of the user they give up, through Landlock, the right
to read the files where the operator mounts Secrets, and to look into or signal other processes.
"""

import ctypes
import errno
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from grpo_api.contract.environment import Env

logger = logging.getLogger(__name__)

CREDENTIALS = frozenset(
    {
        *("HF_TOKEN", "HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN"),
        *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_WEB_IDENTITY_TOKEN_FILE"),
        *("WANDB_API_KEY", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"),
    }
)
"""Variables with credentials that a trainer uses itself: for models, data, uploads and trackers."""
_SERVICE_ACCOUNTS = (Path("/run/secrets"), Path("/var/run/secrets"))
"""Where Kubernetes and clouds mount tokens of a pod's service account: one place, unless /var/run is a folder
of its own."""

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG, _RULE_PATH_BENEATH, _PR_SET_NO_NEW_PRIVS = 1, 1, 38
_READ_FILE, _REFER = 1 << 2, 1 << 13
_SCOPE_SOCKETS, _SCOPE_SIGNALS = 1 << 0, 1 << 1
_FIRST_WITH_REFER, _FIRST_WITH_SCOPES = 2, 6
"""Versions of Landlock, those of Linux 5.19 and 6.12. Under the one before REFER nobody may move a file into
another folder."""
_CAPABILITY_VERSION = 0x20080522
_SEE_OTHERS = 1 << 19 | 1 << 21 | 1 << 38
"""CAP_SYS_PTRACE, CAP_SYS_ADMIN and CAP_PERFMON, with which a process of root looks into others in spite of
Landlock."""
_IS_NOT_THERE = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)
"""An old kernel, one that does without Landlock, or a seccomp profile that forbids it."""


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _Capabilities(ctypes.Structure):
    """What capget and capset are about."""

    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int32))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def without_credentials(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a worker."""
    return {name: value for name, value in environment.items() if name not in CREDENTIALS}


def secret_folders(environment: Mapping[str, str]) -> tuple[Path, ...] | None:
    """The folders of a trainer pod, of which this is the environment, in which Secrets are. None outside of
    pods: there files and processes are those of the user who runs the code."""
    if Env.STALL_TIMEOUT_SECONDS not in environment:
        return None
    hub_token = environment.get("HF_TOKEN_PATH")
    named = [
        Path(environment[Env.TOKENS_DIR]) if Env.TOKENS_DIR in environment else None,
        Path(environment[Env.VOLUMES_DIR]) / "secrets" if Env.VOLUMES_DIR in environment else None,
        Path(hub_token).parent if hub_token else None,
        *_SERVICE_ACCOUNTS,
    ]
    found = (folder.resolve() for folder in named if folder is not None and folder.is_dir())
    return tuple(dict.fromkeys(found))


def hide(folders: Sequence[Path]) -> None:
    """Take from this process, and from all that it starts, the right to read files in these folders, to look
    into the memory and the environment of others, to signal them, and to mount. It cannot be taken back. What
    is created later beside one of the folders, or beside a folder that it is in, is not readable either.

    What the kernel's Landlock cannot take stays: see `warn_of_what_stays_open`.
    """
    version = landlock_version()
    if version < _FIRST_WITH_REFER:
        return
    access = _READ_FILE | _REFER
    scopes = _SCOPE_SOCKETS | _SCOPE_SIGNALS if version >= _FIRST_WITH_SCOPES else 0
    ruleset = _Ruleset(access, 0, scopes)
    # older kernels know only the first field
    size = ctypes.sizeof(ruleset) if scopes else 8
    rules = _syscall(_CREATE_RULESET, ctypes.byref(ruleset), ctypes.c_size_t(size), 0)
    try:
        for path in _beside({Path(os.path.realpath(folder)) for folder in folders}, root=Path("/")):
            _allow(rules, path, access if path.is_dir() else _READ_FILE)
        _check(_libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
        _drop_capabilities()
        _syscall(_RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


@cache
def warn_of_what_stays_open(folders: tuple[Path, ...]) -> None:
    """Tell, once, what workers of a pod with Secrets in these folders are not kept from."""
    if sentence := what_stays_open(folders, version=landlock_version()):
        logger.warning(sentence)


def what_stays_open(folders: Sequence[Path], *, version: int) -> str | None:
    """What workers can do under this version of Landlock, with the fix; None where it takes all that it
    should."""
    if version >= _FIRST_WITH_SCOPES:
        return None
    if version >= _FIRST_WITH_REFER:
        return (
            f"this node's kernel has version {version} of Landlock, so that code of workers can signal the "
            "trainer: run only code that you trust with that, or take nodes with Linux 6.12 or newer"
        )
    secrets = f"read the job's Secrets in {', '.join(map(str, folders))}, and " if folders else ""
    return (
        f"this node's kernel has no Landlock of version 2 or newer, so that code of workers can {secrets}"
        "look into the trainer and signal it: run only code that you trust with that, or take nodes with "
        "Linux 5.19 or newer, best 6.12 or newer"
    )


def _beside(hidden: set[Path], *, root: Path) -> Iterator[Path]:
    """What is below `root`, in as few paths as leave the hidden ones out. A link is none of them: what it
    leads to is found where it is."""
    if not hidden:
        yield root
        return
    for entry in os.scandir(root):
        path = Path(entry.path)
        if entry.is_symlink() or path in hidden:
            continue
        if any(path in folder.parents for folder in hidden):
            yield from _beside(hidden, root=path)
        else:
            yield path


def _allow(rules: int, path: Path, access: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return  # gone since it was listed, or of somebody else
    try:
        rule = _PathBeneath(access, opened)
        _syscall(_ADD_RULE, rules, _RULE_PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(opened)


def _drop_capabilities() -> None:
    header, sets = _Capabilities(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    libc = _libc()
    _check(libc.capget(ctypes.byref(header), ctypes.byref(sets)), "capget")
    for place in range(6):
        # effective, permitted and inheritable of the lower 32, then of the others
        sets[place] &= ~(_SEE_OTHERS >> (32 if place >= 3 else 0)) & 0xFFFFFFFF
    _check(libc.capset(ctypes.byref(header), ctypes.byref(sets)), "capset")


def landlock_version() -> int:
    """That of the kernel's Landlock; 0 where there is none."""
    try:
        return _syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG)
    except OSError as error:
        if error.errno in _IS_NOT_THERE:
            return 0
        raise


def _syscall(number: int, *arguments: object) -> int:
    return _check(int(_libc().syscall(ctypes.c_long(number), *arguments)), f"system call {number}")


def _check(found: int, what: str) -> int:
    """What a function of C returned. Raises OSError where that is a failure."""
    if found < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return found


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)

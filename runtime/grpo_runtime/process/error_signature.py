"""Where a Python error was raised, and whether the same one again means that no other try helps. Pure."""

import re
import subprocess
import sysconfig
import traceback
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from types import FrameType

from grpo_api.v1alpha1.status import ErrorSignature

_LONGEST = 253
_MAY_PASS = (OSError, EOFError, MemoryError, BrokenExecutor, subprocess.SubprocessError)
"""What the network, a volume or another process does. Timeouts and lost connections are OSErrors."""
_MODULES_THAT_MAY_PASS = frozenset(
    {"aiohttp", "botocore", "grpc", "grpo_runtime", "http.client", "httpcore", "httpx", "huggingface_hub",
     "multiprocessing", "ray", "requests", "safetensors_rust", "torch.distributed", "urllib3", "vllm", "zmq"}
)  # fmt: skip
"""Libraries whose errors are about the network, of other processes, of engines, or of a damaged file. Ours
are raised on purpose and say by their exit code whether a retry helps."""
_TYPES_THAT_MAY_PASS = frozenset({"torch.OutOfMemoryError", "torch.AcceleratorError"})
_TEXTS_THAT_MAY_PASS = re.compile(
    r"cuda|nccl|cudnn|cublas|cusolver|\bhip\b|\bgpus?\b|out of memory|collective|gloo|network|connect|socket"
    r"|\bpeers?\b|broken pipe|time[ds]? ?out|unreachable|\bhttps?\b|\bssl\b|killed|\bsignal\b|try again",
    re.I,
)
"""What libraries say in a RuntimeError, which has no class of its own."""
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})


def error_signature(error: BaseException, *, step: int | None) -> ErrorSignature | None:
    """What is the same about this error each time that the program makes it; None for one that may pass, or
    where one of its causes may. `step` is the one that was being made."""
    if not isinstance(error, Exception) or any(map(_may_pass, _with_causes(error))):
        return None
    kind = type(error)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    name = f"{module}{kind.__qualname__}"
    return ErrorSignature(type=name[:_LONGEST], where=where_raised(error)[-_LONGEST:], step=step)


def where_raised(error: BaseException) -> str:
    """MODULE.FUNCTION:LINE of the innermost frame that is not of a library, or else of the innermost one."""
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames:
        return "no traceback"
    own = [each for each in frames if not _is_of_library(each[0])]
    frame, line = (own or frames)[-1]
    return f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_qualname}:{line}"


def _is_of_library(frame: FrameType) -> bool:
    path, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__", ""))
    if module.partition(".")[0] in ("grpo_api", "grpo_runtime"):
        return False  # in an image they are installed like libraries
    return path.startswith(("<", *_LIBRARIES)) or "-packages/" in path


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """The error, the members of a group, and what each was raised from or in the handling of."""
    found: list[BaseException] = [error]
    seen: set[int] = set()
    while found:
        each = found.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        found += [cause for cause in (each.__cause__, each.__context__) if cause is not None]
        found += each.exceptions if isinstance(each, BaseExceptionGroup) else ()


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, _MAY_PASS) or not isinstance(error, Exception):
        return True
    if _TEXTS_THAT_MAY_PASS.search(str(error)):
        return True
    for kind in type(error).__mro__:
        parts = kind.__module__.split(".")
        packages = {".".join(parts[: i + 1]) for i in range(len(parts))}
        name = f"{kind.__module__}.{kind.__qualname__}"
        if name in _TYPES_THAT_MAY_PASS or packages & _MODULES_THAT_MAY_PASS:
            return True
    return False

"""Runs scripts of tests as forks of one process that has imported what they need: importing torch and
transformers takes longer than most of them run.

`python script_server.py MODULE` imports the module. It reads requests from stdin, a line of JSON each, and
answers each with a line: to a script the process id of the fork that runs it, and to such an id with the exit
code of the fork once it has ended. `forks` has the other side.
"""

import contextlib
import importlib
import json
import os
import runpy
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from grpo_runtime.process.lasting_imports import lasting_imports
from grpo_runtime.process.lifetime import die_with


def serve(module: str) -> None:
    """Run what stdin asks for until it ends."""
    with lasting_imports():
        importlib.import_module(module)
    require_one_thread()
    for line in sys.stdin:
        request = json.loads(line)
        if "ended" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["ended"], 0)[1])
        else:
            if request["needs_deepspeed"]:
                import_deepspeed()
            answer = start(request)
        print(answer, flush=True)


def import_deepspeed() -> None:
    """DeepSpeed, which takes seconds and is for few runs. It prints, and stdout is for answers."""
    with lasting_imports(), contextlib.redirect_stdout(sys.stderr):
        import grpo_runtime.trainer.strategy.zero.strategy  # noqa: F401
    require_one_thread()


def require_one_thread() -> None:
    """Fails when an import has started a thread of Python: no fork would have it."""
    assert threading.active_count() == 1, threading.enumerate()


def start(request: dict[str, Any]) -> int:
    """Fork a process that runs a script, and return its id once it leads a session of its own: what a failed
    test leaves can then be ended as a whole."""
    server = os.getpid()
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.setsid()
            die_with(server)
            os.close(read)
            os.close(write)
            code = run(request)
            sys.stdout.flush()
            os._exit(code)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(write)
    os.read(read, 1)
    os.close(read)
    return pid


def run(request: dict[str, Any]) -> int:
    """What the fork does. Returns its exit code."""
    with (
        Path(request["output"]).open("ab") as output,
        Path(request["errors"]).open("ab") as errors,
        Path(os.devnull).open("rb") as nothing,
    ):
        for number, file in enumerate((nothing, output, errors)):
            os.dup2(file.fileno(), number)
    os.environ.clear()
    os.environ.update(request["environment"])
    script = Path(request["script"])
    sys.argv = [str(script), *request["arguments"]]
    # Python looks at the variable when it starts
    more = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:0] = [str(script.parent), *more]
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    return 0


if __name__ == "__main__":
    # as a pod's process 1 has it, whatever started the tests
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    serve(sys.argv[1])

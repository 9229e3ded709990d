"""Code that a scenario runs inside a pod to kill one of its processes."""

KILL_A_RANK = """
import os, pathlib, signal
for folder in pathlib.Path("/proc").iterdir():
    if folder.name.isdigit() and int(folder.name) not in (1, os.getpid()):
        if b"ranks" in (folder / "cmdline").read_bytes().split(b"\\0"):
            os.kill(int(folder.name), signal.SIGKILL)
            break
else:
    raise SystemExit("no rank is running")
"""
"""Python code that kills one training process of a trainer pod, as the kernel does when memory is short."""

KILL_AN_ENGINE = """
import os, pathlib, signal
for folder in pathlib.Path("/proc").iterdir():
    if folder.name.isdigit():
        if b"grpo_runtime.engines.colocated.engine_child" in (folder / "cmdline").read_bytes().split(b"\\0"):
            os.kill(int(folder.name), signal.{signal})
            break
else:
    raise SystemExit("no engine is running")
"""
"""Python code that sends a signal to one engine that has a process beside its rank."""

KILL_AN_ACTOR = """
import os, pathlib, signal
for folder in pathlib.Path("/proc").iterdir():
    if folder.name.isdigit():
        if (folder / "cmdline").read_bytes().startswith(b"ray::EngineActor"):
            os.kill(int(folder.name), signal.SIGKILL)
            break
else:
    raise SystemExit("no actor is running")
"""
"""Python code that kills one engine that is an actor of Ray."""

"""The process that runs a program of the user for each episode, any number at a time.

It is started as `python -m grpo_runtime.rollouts.agents.program CONFIG PARENT HIDDEN`, and speaks the lines
of `rollouts.agents.worker`. CONFIG has `command`, and `field`, which errors name. A program finds the API in
OPENAI_BASE_URL and OPENAI_API_KEY, and its task as one object of JSON on its standard input. Its reward is
the last line of its standard output, where that is one. The last line of an episode has the end of what it
wrote:

    {"id": 7, "reward": 1.0, "state": {}, "is_done": true, "output": "..."}
    {"id": 7, "error": "...", "is_done": true, "output": "..."}    it has failed
    {"id": 7, "is_cut": true, "output": "..."}                     it was ended
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_runtime.errors import UserError
from grpo_runtime.process import program_tree
from grpo_runtime.process.line_worker import Lines, serve
from grpo_runtime.rollouts.agents.result import MAX_QUOTED_CHARACTERS, result_of
from grpo_runtime.rollouts.function.worker import Conversations

GRACE_SECONDS = 3.0
"""How long a program whose time is over may take to end, before it is killed."""
MAX_OUTPUT_BYTES = 64 << 10
"""Of standard output, and of standard error, the last so many are kept, and half of them handed on."""
MODEL_NAME = "policy"
"""Any name is answered."""
UNTRAINED_KEY = "UNTRAINED_API_KEY"
_PIPES_CLOSE_SECONDS = 5.0
"""Once a program and all that it has started have ended, its pipes have."""
_HIDDEN = "(key)"


def main(arguments: list[str]) -> int:
    """Serve until the requests end; returns the exit code."""
    return serve(arguments, load=find_program, answer=_answer)


def find_program(config: dict[str, Any]) -> "Program":
    """The program that CONFIG names. Raises UserError where it is not there."""
    return Program(config["command"], field=config["field"])


def _answer(program: "Program", lines: Lines, runner: asyncio.Runner) -> None:
    async def play(given: Mapping[str, Any], _: object) -> dict[str, Any]:
        return await program.play(given)

    runner.run(Conversations(play, lines).serve())


class Program:
    """The program of an environment."""

    def __init__(self, command: Sequence[str], *, field: str) -> None:
        """Raises UserError where it is not there."""
        if shutil.which(command[0]) is None:
            raise UserError(
                f"{field}: command: there is no program {command[0]} in this image: add it there, or write "
                "its whole path"
            )
        self._command = list(command)

    async def play(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Run it for one episode, and end what it has started; returns what the last line of the episode
        says, also where this is cancelled."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", program_tree.__file__, str(os.getpid()), str(GRACE_SECONDS)),
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(given),
            # the end of the worker's group would leave no time to end what the program has started
            start_new_session=True,
        )
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        output, errors = _End(), _End()
        feeding = asyncio.create_task(_feed(process.stdin, json.dumps(given["task"])))
        reading = [
            asyncio.create_task(output.read(process.stdout)),
            asyncio.create_task(errors.read(process.stderr)),
        ]
        is_cancelled = False
        try:
            await process.wait()
        except asyncio.CancelledError:
            is_cancelled = True
            with contextlib.suppress(ProcessLookupError):  # it has ended at this moment
                process.terminate()
            await process.wait()
        finally:
            feeding.cancel()
            await asyncio.wait(reading, timeout=_PIPES_CLOSE_SECONDS)
            for task in (feeding, *reading):
                task.cancel()
            await asyncio.gather(feeding, *reading, return_exceptions=True)
        ends = [_without_keys(end.text, given) for end in (output, errors)]
        said = written_together(*ends)
        if is_cancelled:
            return {"output": said}
        if process.returncode:
            return _failed(f"{self._name} {_how_it_ended(process.returncode)}", *ends)
        try:
            return {**result_of_output(output.text), "output": said}
        except (TypeError, ValueError) as error:
            return _failed(f"{self._name} ended with another last line than a reward: {error}", *ends)

    @property
    def _name(self) -> str:
        return f"the program {Path(self._command[0]).name}"


class _End:
    """The end of what is written to a pipe."""

    def __init__(self) -> None:
        self._kept = bytearray()

    async def read(self, pipe: asyncio.StreamReader) -> None:
        """Read to its end, so that who writes never waits for long."""
        while read := await pipe.read(MAX_OUTPUT_BYTES):
            self._kept += read
            del self._kept[:-MAX_OUTPUT_BYTES]

    @property
    def text(self) -> str:
        return self._kept.decode(errors="replace")


def result_of_output(output: str) -> dict[str, Any]:
    """The reward and the state that the last line of a program's output has: it is a number, or an object
    with nothing but `reward` and `state`. Any other line is none. Raises TypeError or ValueError for such an
    object, or number, that is no reward."""
    lines = output.split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "")
    try:
        found = json.loads(last)
    except (ValueError, RecursionError):
        found = None
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    is_object = isinstance(found, dict) and bool(found) and found.keys() <= {"reward", "state"}
    return result_of(found if is_number or is_object else None)


def written_together(output: str, errors: str) -> str:
    """What a program has written, in one text."""
    longest = MAX_OUTPUT_BYTES // 2
    parts = {"standard error": errors[-longest:].strip(), "standard output": output[-longest:].strip()}
    return "\n".join(f"[end of {name}]\n{text}" for name, text in parts.items() if text)


def _environment(given: Mapping[str, Any]) -> dict[str, str]:
    """That of the worker, with the API, which no proxy leads to."""
    own = {
        "OPENAI_BASE_URL": given["url"],
        "OPENAI_API_KEY": given["key"],
        "OPENAI_MODEL": MODEL_NAME,
        UNTRAINED_KEY: given["untrained_key"],
    }
    direct = {
        name: ",".join(filter(None, [os.environ.get(name), "127.0.0.1", "localhost"]))
        for name in ("no_proxy", "NO_PROXY")
    }
    return {**os.environ, **direct, **own}


async def _feed(pipe: asyncio.StreamWriter, task: str) -> None:
    """Write the task, and close. A program need not read it."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        pipe.write(task.encode() + b"\n")
        await pipe.drain()
        pipe.close()
        await pipe.wait_closed()


def _without_keys(text: str, given: Mapping[str, Any]) -> str:
    for name in ("key", "untrained_key"):
        text = text.replace(given[name], _HIDDEN)
    return text


def _how_it_ended(code: int) -> str:
    number = code - 128
    if number in set(signal.Signals):
        why = ", which mostly means out of memory" if number == signal.SIGKILL else ""
        return f"was ended by {signal.Signals(number).name}{why}"
    return f"ended with code {code}"


def _failed(sentence: str, output: str, errors: str) -> dict[str, Any]:
    """The last line of an episode whose program has failed. What it wrote to either leaves half of the
    quotation to the other."""
    half = MAX_QUOTED_CHARACTERS // 2
    quoted = written_together(
        output[-max(half, MAX_QUOTED_CHARACTERS - len(errors)) :],
        errors[-max(half, MAX_QUOTED_CHARACTERS - len(output)) :],
    )
    return {
        "error": f"{sentence}: {quoted or 'it wrote nothing'}",
        "output": written_together(output, errors),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

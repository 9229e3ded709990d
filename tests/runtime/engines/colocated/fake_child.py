"""The child process of a rank over a FakeLocalEngine, which takes shared memory and has accidents.

The first message names the file that says which accidents are to come.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from grpo_runtime.process.lasting_imports import lasting_imports  # noqa: E402

with lasting_imports():
    from fake_local_engine import SHAPES, FakeLocalEngine

from grpo_runtime.engines.colocated.engine_child import main  # noqa: E402
from grpo_runtime.errors import UserError  # noqa: E402
from grpo_runtime.rollouts.interface import GenerateRequest, Rollout  # noqa: E402
from grpo_runtime.weight_sync.interface import Info, ReceiverSettings  # noqa: E402
from grpo_runtime.weight_sync.registry import SHARED_MEMORY  # noqa: E402


class FakeChild(FakeLocalEngine):
    """Finishes one request a step. The plan lists places and what happens there: its first accident happens
    when its place is reached, in whichever process, and is then taken from it."""

    def __init__(self, message: dict[str, Any]) -> None:
        super().__init__(
            logprobs=message["logprobs"], receiver=SHARED_MEMORY.make_receiver(ReceiverSettings(SHAPES))
        )
        self.channel = ChannelWithAccidents(self, self.channel)
        self._plan = Path(message["plan"])
        self._starts = Path(message["starts"])
        with self._starts.open("a") as starts:
            starts.write(f"{os.getpid()}\n")
        self.num_steps = 0
        self.reach("make")

    def sample_each(self, requests: Sequence[GenerateRequest]) -> Iterator[tuple[int, Rollout]]:
        self.require_awake("weights", "kv_cache")
        self.reach("sample")
        for index, request in enumerate(requests):
            self.num_steps += 1
            yield index, self.rollout(request)
            self.reach(f"sampled {index}")

    def wake_up(self, tag: str) -> None:
        self.reach("wake")
        super().wake_up(tag)

    def sleep(self, level: int) -> None:
        super().sleep(level)
        self.reach("sleep")

    def probe_logprobs(self, token_ids: Sequence[int]) -> list[float]:
        self.reach("probe")
        return super().probe_logprobs(token_ids)

    def reach(self, place: str) -> None:
        """Have the next accident, if it happens here."""
        accidents = json.loads(self._plan.read_text())
        if not accidents or accidents[0][0] != place:
            return
        (_, what), *rest = accidents
        # whole or not at all: this process may be killed meanwhile
        changed = self._plan.with_name(f"plan-{os.getpid()}")
        changed.write_text(json.dumps(rest))
        changed.replace(self._plan)
        if what in ("SIGKILL", "SIGSTOP", "SIGSEGV"):
            os.kill(os.getpid(), signal.Signals[what])
        elif what == "exit":
            os._exit(3)
        elif what == "leave a process":
            # a copy of this process, which keeps its end of the pipe open
            if left := os.fork():
                self._starts.with_name("left").write_text(str(left))
                os._exit(3)
            time.sleep(600)
            os._exit(0)
        elif what == "hang":
            # as a GPU that hangs: the other threads continue
            time.sleep(600)
        elif what == "compile":
            # longer than an engine may usually take for a step
            time.sleep(5)
        elif what == "refuse":
            raise UserError("vLLM refuses engine.args: --wibble")
        else:
            raise RuntimeError(what)


class ChannelWithAccidents:
    """The verbs of a FakeChild."""

    def __init__(self, child: FakeChild, channel: Any) -> None:
        self._child = child
        self._channel = channel

    async def init(self, info: Info) -> None:
        self._child.reach("init")
        await self._channel.init(info)

    async def start(self) -> None:
        self._child.reach("start")
        await self._channel.start()

    async def update(self, info: Info) -> None:
        self._child.reach("update")
        await self._channel.update(info)

    async def finish(self, version: str) -> None:
        self._child.reach("finish")
        await self._channel.finish(version)

    async def shutdown(self) -> None:
        await self._channel.shutdown()


def run(arguments: Sequence[str]) -> NoReturn:
    """Serve the rank in this process."""
    main(arguments, make_engine=FakeChild)


if __name__ == "__main__":
    run(sys.argv[1:])

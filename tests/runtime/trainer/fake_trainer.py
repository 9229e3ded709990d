"""A whole trainer pod over FakeEngines, a script for `forks`.

`fake_trainer.py TERMINATION_LOG PORT RENDEZVOUS_PORT` is its process 1, with the environment of one.
"""

import asyncio
import functools
import os
import sys
import threading
from pathlib import Path
from typing import Any

from forked_supervisor import supervise_forked


def import_rank_with_fakes(run_dir: Path) -> Any:
    """A rank whose engines and strategy are those that its environment names."""
    from fake_engines import FakeEngines
    from sharded_strategy import ShardedStrategy
    from small_gpu import StandInForSmallGpu

    from grpo_runtime.trainer.rank import run_rank

    class SlowFakeEngines(FakeEngines):
        """From the step in FAKE_HANG_AT on, generation never ends; in that of FAKE_BREAK_AT it has a bug."""

        async def generate(self, requests, *, on_finished=None, stays_awake=False):  # type: ignore[no-untyped-def]
            if self._version.step >= int(os.environ.get("FAKE_HANG_AT", "1000000")):
                await asyncio.Event().wait()
            if self._version.step == int(os.environ.get("FAKE_BREAK_AT", "-1")):
                raise TypeError("unsupported")
            return await super().generate(requests, on_finished=on_finished)

        def __del__(self) -> None:
            # as the destructor of a gloo group may do
            threading.Event().wait()

    strategies = {"sharded": ShardedStrategy, "small GPU": StandInForSmallGpu}
    return functools.partial(
        run_rank,
        run_dir=run_dir,
        connect=SlowFakeEngines,
        make_strategy=strategies.get(os.environ.get("FAKE_STRATEGY", "")),
    )


if __name__ == "__main__":
    sys.exit(supervise_forked(*sys.argv[1:], import_rank=import_rank_with_fakes))

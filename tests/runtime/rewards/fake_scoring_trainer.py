"""A process that calls a reward function which never returns: `python fake_scoring_trainer.py PID_FILE`. The
function writes its own process id to that file."""

import asyncio
import sys

from grpo_runtime.rewards.pool import RewardPool
from grpo_runtime.rewards.types import ImportedFunction, RewardFunction, RewardRequest


async def main(pid_file: str) -> None:
    function = RewardFunction(
        name="mine", source=ImportedFunction(path="reward_examples:writes_its_pid_and_hangs")
    )
    request = RewardRequest(
        prompts=["a="],
        completions=["a"],
        completion_ids=[[1]],
        columns={"pid_file": [pid_file]},
        step=0,
        total_steps=1,
    )
    async with RewardPool((function,)) as pool:
        await pool.submit(request)


asyncio.run(main(sys.argv[1]))

"""A process that asks a reward function which never answers. `python fake_scoring_trainer.py PID_FILE`: the
function writes its own process id there."""

import asyncio
import sys

from grpo_runtime.rewards.pool import RewardPool
from grpo_runtime.rewards.types import RewardFunction, RewardRequest


async def main(pid_file: str) -> None:
    function = RewardFunction(name="mine", function="reward_examples:says_who_it_is_and_hangs")
    request = RewardRequest(
        prompts=["a="],
        completions=["a"],
        completion_ids=[[1]],
        columns={"pid_file": [pid_file]},
        step=0,
        total_steps=1,
    )
    async with RewardPool((function,)) as pool:
        await pool.score(request)


asyncio.run(main(sys.argv[1]))

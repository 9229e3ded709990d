"""A trainer pod of two ranks on two GPUs, over engines that are none: see `TrainerPod` of
tests/runtime/trainer.

hanging_pod.py STALL_SECONDS   how it ends: its exit code, the reason, and the sentence
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from fake_job import job
from forks import SCRIPT_SERVER
from trainer_pod import TrainerPod

from grpo_api.contract.environment import Env


def main(stall_seconds: str) -> None:
    limit = {Env.STALL_TIMEOUT_SECONDS: stall_seconds, Env.STARTUP_DEADLINE_SECONDS: stall_seconds}
    with TemporaryDirectory() as folder:
        code, message = TrainerPod(Path(folder), job(num_ranks=2), environment=limit).end()
        print("\n", code, message.reason, message.message)
    SCRIPT_SERVER.close()


if __name__ == "__main__":
    main(sys.argv[1])

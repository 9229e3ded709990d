"""Trains with TRL: `python -m grpo_trl.trl_side SETTINGS`, with the Python of TRL's environment.

SETTINGS is a JSON file, which `sides` writes. A line of JSON for each step, with its time and metrics, goes
to the file that it names.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from grpo_trl.rewards import spread


class PhasedTrainer(GRPOTrainer):
    """GRPOTrainer that measures its generation, and what follows it until there are advantages."""

    def __init__(self, *args: Any, **named: Any) -> None:
        self.phase_seconds: dict[str, float] = {}
        super().__init__(*args, **named)

    def _generate(self, *args: Any, **named: Any) -> Any:
        began = time.monotonic()
        try:
            return super()._generate(*args, **named)
        finally:
            self.phase_seconds["time/generate_seconds"] = time.monotonic() - began

    def _generate_and_score_completions(self, *args: Any, **named: Any) -> Any:
        began = time.monotonic()
        try:
            return super()._generate_and_score_completions(*args, **named)
        finally:
            seconds = time.monotonic() - began
            self.phase_seconds["time/score_seconds"] = seconds - self.phase_seconds["time/generate_seconds"]


class StepLog(TrainerCallback):
    """Writes each step as it is logged."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")
        self.trainer: PhasedTrainer | None = None

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Write one line; the summary at the end is no step."""
        if "completions/mean_length" not in logs:
            return
        assert self.trainer is not None, "a step was logged before there was a trainer"
        values = {name: value for name, value in logs.items() if isinstance(value, int | float)}
        line = {"time": time.time(), "values": values | self.trainer.phase_seconds}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def main(settings: dict[str, Any]) -> None:
    """Train as `settings` say."""
    torch.set_num_threads(settings["num_threads"])
    rows = [json.loads(line) for line in Path(settings["dataset"]).read_text().splitlines()]
    log = StepLog(Path(settings["log"]))
    trainer = PhasedTrainer(
        model=settings["model"],
        reward_funcs=spread,
        args=GRPOConfig(
            output_dir=settings["output"],
            model_init_kwargs={"dtype": "float32", "attn_implementation": "sdpa"},
            **settings["arguments"],
        ),
        train_dataset=Dataset.from_list(rows),
        callbacks=[log],
    )
    log.trainer = trainer
    trainer.train()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))

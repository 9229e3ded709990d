"""One batch, said in two languages: as a GRPOJob, and as the arguments of TRL's GRPOConfig. Pure."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_trl.cases import Case

PROMPT_COLUMN = "prompt"
LEARNING_RATE = 1e-5
REWARD = "grpo_trl.rewards:spread"


def prompts(case: Case) -> list[str]:
    """The prompts of one step, all of the same length: a character is a token."""
    return [f"{number:0{case.prompt_tokens - 1}d}=" for number in range(case.prompts_per_step)]


def write_prompts(case: Case, path: Path) -> None:
    """Write the dataset that both read, as JSON lines."""
    path.write_text("".join(json.dumps({PROMPT_COLUMN: prompt}) + "\n" for prompt in prompts(case)))


def our_job(case: Case, *, model: Path, dataset: Path, processes: int | None) -> Mapping[str, Any]:
    """The GRPOJob; what it does not name has its default. `processes` is trainer.processesPerNode."""
    return {
        "apiVersion": "grpo.dev/v1alpha1",
        "kind": "GRPOJob",
        "metadata": {"name": f"trl-{case.name.lower()}"},
        "spec": {
            "mode": "Colocated",
            "model": {"source": model.absolute().as_uri(), "dtype": "float32"},
            "dataset": {"source": dataset.absolute().as_uri(), "prompt": PROMPT_COLUMN},
            "rewards": [{"name": "spread", "function": REWARD}],
            "algorithm": {
                "steps": 1 + case.num_steps,
                "promptsPerStep": case.prompts_per_step,
                "groupSize": case.group_size,
                "lossType": "dapo",
                "optimizer": {"learningRate": LEARNING_RATE},
            },
            "sampling": {"maxTokens": case.completion_tokens, "temperature": 1.0},
            "trainer": {} if processes is None else {"processesPerNode": processes},
            "engine": {"maxModelLen": 256},
        },
    }


def trl_arguments(case: Case) -> Mapping[str, Any]:
    """The arguments of GRPOConfig, for one process on the CPU."""
    return {
        "max_steps": 1 + case.num_steps,
        # each step generates, scores and trains once, on the whole batch in one forward pass
        "per_device_train_batch_size": case.num_completions,
        "gradient_accumulation_steps": 1,
        "steps_per_generation": 1,
        "num_iterations": 1,
        "num_generations": case.group_size,
        "max_completion_length": case.completion_tokens,
        "temperature": 1.0,
        "loss_type": "dapo",
        "beta": 0.0,
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "bf16": False,
        "use_cpu": True,
        "use_vllm": False,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }

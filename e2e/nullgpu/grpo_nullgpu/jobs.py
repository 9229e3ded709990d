"""Whole jobs of `grpo-runtime run` on null GPUs, in the forms of the examples, with vLLM's CUDA build.

Models, data and numbers are small; everything else is what a GPU gets. The trainer's numbers are the CPU's,
and so are those of the engines: see `mirror/engine_mirror.py`.
"""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import Qwen3Config, Qwen3ForCausalLM

from grpo_nullgpu.digest import digest_of_model
from grpo_nullgpu.machine import NullMachine
from grpo_runtime.model.save import save_policy
from grpo_runtime.model.tiny import char_tokenizer
from grpo_runtime.report.metrics_file import MetricsRecord, read_metrics

_ROOT = Path(__file__).parents[3]
CUDA_ENVIRONMENT = _ROOT / ".venv-cuda"
STEPS = 3
_STARTED_AGAIN = re.compile(r"is started again|attempt \d+ follows")
MOST_TOKENS = 512
_CHAT = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
SMALL: Mapping[str, Any] = {
    "algorithm": {
        "steps": STEPS,
        "promptsPerStep": 2,
        "groupSize": 4,
        "optimizer": {"learningRate": 1e-3, "warmupSteps": 0},
    },
    "sampling": {"maxTokens": 16},
    "engine": {"maxModelLen": 256, "kvCacheMemory": "64Mi"},
    "checkpoint": {"everySteps": 1, "claimName": None},
}
"""What every job has other than its example, beside model and data."""


def gpus(number: int) -> dict[str, Any]:
    """Of a trainer, or of each engine."""
    return {"resources": {"limits": {"nvidia.com/gpu": number, "memory": None}, "requests": None}}


@dataclass(frozen=True)
class NullJob:
    """A job in the form of an example, with fewer GPUs, smaller numbers and other fields."""

    example: str
    num_gpus: int
    changes: Mapping[str, Any]
    """Of its spec: a mapping changes what it names, and None removes it."""

    def document(self) -> dict[str, Any]:
        """As a file has it."""
        documents = yaml.safe_load_all((_ROOT / f"examples/{self.example}.yaml").read_text())
        job: dict[str, Any] = next(each for each in documents if each["kind"] == "GRPOJob")
        # half of what a random model writes has one of these, so that there is something to learn
        vowel = {"name": "vowel", "builtin": "regex", "pattern": "[aeiou]"}
        own = {
            "model": {"source": "pvc://data/model"},
            "dataset": {
                "source": "pvc://data/train.jsonl",
                "subset": None,
                "prompt": "question",
                "answer": "answer",
            },
            "rewards": [*job["spec"]["rewards"], vowel],
        }
        for changes in (own, SMALL, self.changes):
            job["spec"] = changed(job["spec"], changes)
        return job

    def write(self, folder: Path) -> Path:
        """Its file, with its model and data beside it."""
        write_model(folder / "data/model")
        write_questions(folder / "data/train.jsonl")
        path = folder / "job.yaml"
        path.write_text(yaml.safe_dump(self.document()))
        return path


def changed(fields: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with others in their place, also within mappings; None removes one."""
    found = dict(fields)
    for name, value in changes.items():
        before = found.get(name)
        is_deeper = isinstance(value, Mapping) and isinstance(before, Mapping)
        found[name] = changed(before, value) if is_deeper else value
    return {name: value for name, value in found.items() if value is not None}


def write_model(folder: Path) -> None:
    """A Qwen3 of two layers, with grouped heads and tied embeddings as Qwen3-0.6B."""
    folder.mkdir(parents=True)
    tokenizer = char_tokenizer(max_length_tokens=MOST_TOKENS)
    tokenizer.chat_template = _CHAT
    special = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MOST_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=None,
        **special,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(config).float()
    model.generation_config.update(**special)
    save_policy(model, tokenizer=tokenizer, into=folder)


def write_questions(file: Path) -> None:
    """In the form of GSM8K."""
    rows = ({"question": f"{number} + 1?", "answer": f"#### {number + 1}"} for number in range(8))
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


class RunningJob:
    """`grpo-runtime run` of a job on a machine of its own, whose files are in `folder`."""

    def __init__(self, job: NullJob, folder: Path) -> None:
        self.machine = NullMachine(
            folder, num_gpus=job.num_gpus, has_numbers=True, python_environment=CUDA_ENVIRONMENT
        )
        self.output = folder / "out"
        self._model = folder / "data/model"
        self._kept = folder / "kept"
        self._engines = folder / "engines"
        self._screen = folder / "screen"
        command = (CUDA_ENVIRONMENT / "bin/grpo-runtime", "run", job.write(folder))
        options = ("--output", self.output, "--volume", f"claim/data={folder / 'data'}")
        environment = self.machine.environment(NULL_GPU_ENGINES=str(self._engines))
        with self._screen.open("wb") as screen:
            self._process = subprocess.Popen(
                [*command, *options], env=environment, stdout=screen, stderr=screen
            )

    def end(self, *, seconds: float) -> list[MetricsRecord]:
        """The records of its steps, all of which it has made. Keeps what the trainer saves of each step."""
        deadline = time.monotonic() + seconds
        while self._process.poll() is None:
            self._keep_saved()
            assert not _STARTED_AGAIN.search(self._screen.read_text()), self.said()
            assert time.monotonic() < deadline, f"not ended in {seconds:g} s\n{self.said()}"
            time.sleep(0.05)
        assert self._process.returncode == 0, self.said()
        records = read_metrics(self.output / "metrics.jsonl")
        assert [record.step for record in records] == list(range(1, STEPS + 1))
        return records

    def _keep_saved(self) -> None:
        """The job removes older ones."""
        for folder in self.output.glob("checkpoints/step-??????"):
            if (folder / "manifest.json").exists() and not (kept := self._kept / folder.name).exists():
                shutil.copytree(folder / "model", kept, copy_function=os.link)

    def stop(self) -> None:
        """End it, with all that it started."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def said(self) -> str:
        """What it printed, and the ends of its logs."""
        logs = sorted(self.output.glob("logs/*.log"))
        ends = [f"{path.name}:\n{path.read_text()[-6000:]}" for path in logs]
        return "\n".join([self._screen.read_text(), *ends])

    def weights_of_the_trainer(self) -> list[str]:
        """Digests by version: of the model it began with, and of each step before the last one."""
        saved = (self._model, *(self._kept / f"step-{step:06d}" for step in range(1, STEPS)))
        return [digest_of_model(folder, base=self._model, dtype=torch.bfloat16) for folder in saved]

    def said_by_engines(self, what: str) -> dict[int, list[dict[str, Any]]]:
        """What the processes of engines wrote of themselves that has such a field, by process id."""
        found: dict[int, list[dict[str, Any]]] = {}
        for line in map(json.loads, self._engines.read_text().splitlines()):
            if what in line:
                found.setdefault(line["pid"], []).append(line)
        return found

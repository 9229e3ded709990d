"""Runs that are killed and resumed, and what an uninterrupted one is compared with."""

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from forks import exit_codes, start_ranks
from pod_builder import free_port, run_config, trainer_environment
from safetensors.torch import load_file

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.report.metrics_file import MetricsRecord, parse_metrics, read_metrics
from grpo_runtime.rollouts.frames import decode_frames
from grpo_runtime.rollouts.journal.reader import file_of

STEPS, EVERY_STEPS, SAMPLES = 5, 2, 8
CHECKSUM = "journal/weights_checksum"
_OF_THIS_ATTEMPT = (
    *("time/", "checkpoint/", "step_time", "tokens_per_second", "sync/"),
    *("journal/replayed_samples", "journal/digest_differs"),
)


def killable_job(*, num_ranks: int = 1, strategy: str | None = None, **spec: Any) -> RunConfig:
    """A small job with a journal, whose reward function notes its calls."""
    more = spec.pop("algorithm", {})
    sampling, checkpoint = spec.pop("sampling", {}), spec.pop("checkpoint", {})
    return run_config(
        rewards=[{"name": "copy", "function": "scripted_rewards:noted"}],
        algorithm={
            "steps": STEPS,
            "promptsPerStep": 2,
            "groupSize": SAMPLES // 2,
            "numIterations": 2,
            "minibatches": 2,
            "optimizer": {"learningRate": 1e-3},
            "kl": {"beta": 0.05, "refSync": {"everySteps": 3, "mix": 0.3}},
            # the policy begins above it and ends below
            "entropy": {"coefficient": 0.1, "target": 4.58, "delta": 0.05},
            **more,
        },
        sampling={"maxTokens": 4, **sampling},
        trainer={"processesPerNode": num_ranks, "strategy": strategy},
        checkpoint={"everySteps": EVERY_STEPS, "claimName": "claim", **checkpoint},
        **spec,
    )


def run_attempt(folder: Path, run: RunConfig, *, attempt: int, kill: str = "") -> list[int | None]:
    """The exit codes of the ranks of an attempt: -9 of the one that the script kills, None of those that are
    killed after it. They run over a scripted engine, which is a fake; what they asked for is in
    `asked-ATTEMPT`."""
    run_dir = folder / f"cache-{attempt}-0" / "run"
    run_dir.mkdir(parents=True, exist_ok=True)
    num_ranks = run.topology.world_size
    environment = {
        **os.environ,
        **trainer_environment(folder, run, attempt=attempt),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "GROUP_RANK": "0",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).parent),
        "SCRIPTED_KILL": kill,
        "SCRIPTED_LOG": str(folder / f"asked-{attempt}"),
    }
    ranks = start_ranks(
        num_ranks,
        Path(__file__).with_name("scripted_rank.py"),
        str(run_dir),
        environment=environment,
        output=folder / f"log-{attempt}",
        strategy=run.strategy.value,
    )
    return exit_codes(ranks)


@dataclass(frozen=True)
class Asked:
    """What an attempt asked of its engine and of its reward function."""

    seeds: list[int]
    scored: dict[int, list[str]]
    """Prompts by step."""
    synced: list[int]


def asked(folder: Path, attempt: int) -> Asked:
    path = folder / f"asked-{attempt}"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    scored: dict[int, list[str]] = {}
    for line in lines:
        if "scored" in line:
            # a call for each group, in the order in which they finish
            scored.setdefault(line["scored"], []).extend(line["prompts"])
    assert all(len(prompts) <= SAMPLES for prompts in scored.values()), (
        "a step was scored twice in an attempt"
    )
    return Asked(
        seeds=[line["seed"] for line in lines if "seed" in line],
        scored={step: sorted(prompts) for step, prompts in scored.items()},
        synced=[line["sync"] for line in lines if "sync" in line],
    )


@dataclass(frozen=True)
class OnDisk:
    """What the journal holds."""

    seeds: set[int]
    scored: Counter[int]
    """By step, how many samples have their rewards."""


def on_disk(folder: Path) -> OnDisk:
    """What was written whole, in any file of the journal."""
    seeds, scored = set(), Counter[int]()
    for path in (folder / "output" / "journal").glob("step-*/*.journal"):
        for frame in decode_frames(path.read_bytes())[0]:
            if frame.header["kind"] == "generated":
                seeds.add(frame.header["seed"])
            elif frame.header["kind"] == "scored":
                scored[int(path.parent.name.removeprefix("step-"))] += len(frame.arrays["checksums"])
    return OnDisk(seeds, scored)


def values(folder: Path) -> list[Mapping[str, float]]:
    """The metrics of every step, as a reader sees them, without what differs between attempts."""
    records = read_metrics(folder / "output" / "metrics.jsonl")
    assert [record.step for record in records] == list(range(1, STEPS + 1))
    return [
        {name: value for name, value in record.values.items() if not name.startswith(_OF_THIS_ATTEMPT)}
        for record in records
    ]


def all_records(folder: Path) -> list[MetricsRecord]:
    return parse_metrics((folder / "output" / "metrics.jsonl").read_text())


def policy(folder: Path) -> dict[str, torch.Tensor]:
    [path] = (folder / "output" / "model").glob("*.safetensors")
    return load_file(path)


def last_state(folder: Path) -> Mapping[str, Any]:
    """Where the run stood in its last checkpoint, the position in the prompts included."""
    path = folder / "output" / "checkpoints" / f"step-{STEPS:06d}" / "state.json"
    found: Mapping[str, Any] = json.loads(path.read_text())
    return found


def newest_checkpoint(folder: Path) -> int:
    """Its step; 0 where none is whole."""
    found = (folder / "output" / "checkpoints").glob("step-*")
    return max((int(path.name.removeprefix("step-")) for path in found), default=0)


def own_file(folder: Path, step: int, *, attempt: int = 1) -> Path:
    """What an attempt has written of a step."""
    return file_of(folder / "output" / "journal", step=step, attempt=attempt)


def tear(folder: Path, step: int, *, attempt: int = 1) -> None:
    """As if the process had been killed in the middle of the last write."""
    path = own_file(folder, step, attempt=attempt)
    os.truncate(path, path.stat().st_size - 7)


def damage(folder: Path, step: int) -> None:
    """Turn one bit around in the middle of the file."""
    path = own_file(folder, step)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


Hurt = Callable[[Path, int], None]

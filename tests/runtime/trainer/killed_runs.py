"""Runs that are killed and resumed, and what an uninterrupted one is compared with."""

import hashlib
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
from grpo_runtime.model.load import load_policy
from grpo_runtime.report.metrics_file import MetricsRecord, parse_metrics, read_metrics
from grpo_runtime.rollouts.frames import decode_frames
from grpo_runtime.rollouts.interface import GivenUp
from grpo_runtime.rollouts.journal.reader import attempts_in, file_of, step_folders
from grpo_runtime.rollouts.journal.records import Composed, Generated, Scored, decode_record
from grpo_runtime.weight_sync.tag import held_tag

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
    function = spec.pop("function", "scripted_rewards:noted")
    return run_config(
        rewards=[{"name": "copy", "function": function}],
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


def run_attempt(
    folder: Path, run: RunConfig, *, attempt: int, kill: str = "", by: str = "SIGKILL"
) -> list[int | None]:
    """The exit codes of the ranks of an attempt: -9 of the one that the script kills, None of those that are
    killed after it. `by` SIGTERM it is asked to stop. They run over a scripted engine, which is a fake; what
    they asked for is in `asked-ATTEMPT`."""
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
        "SCRIPTED_SIGNAL": by,
        "SCRIPTED_LOG": str(folder / f"asked-{attempt}"),
        "SCRIPTED_FORGOTTEN": str(folder / "forgotten"),
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


def noted(folder: Path, attempt: int) -> list[dict[str, Any]]:
    """The lines of `asked-ATTEMPT`."""
    path = folder / f"asked-{attempt}"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def asked(folder: Path, attempt: int) -> Asked:
    lines = noted(folder, attempt)
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


def given_up_on_disk(folder: Path) -> set[int]:
    """The seeds of samples that were given up."""
    found = set()
    for path in (folder / "output" / "journal").glob("step-*/*.journal"):
        records = map(decode_record, decode_frames(path.read_bytes())[0])
        found |= {
            record.seed
            for record in records
            if isinstance(record, Generated) and isinstance(record.completion, GivenUp)
        }
    return found


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


@dataclass(frozen=True)
class AheadOnDisk:
    """What the journal of asynchronous training holds, by the ordinals of groups."""

    samples: dict[int, int]
    """Group by seed."""
    unfinished: dict[int, int]
    """By seed the tokens of those that are not finished."""
    given_up: dict[int, int]
    """Of those that were given up."""
    scored: set[int]
    composed: dict[int, Composed]
    """By step, the newest of each."""


def ahead_on_disk(folder: Path, *, last_step: int | None = None, with_forgotten: bool = False) -> AheadOnDisk:
    """What was written whole of the steps up to `last_step`, and of those that were removed since."""
    samples: dict[int, int] = {}
    unfinished: dict[int, int] = {}
    given_up: dict[int, int] = {}
    scored: set[int] = set()
    composed: dict[tuple[int, int], Composed] = {}
    for root in (folder / "output" / "journal", *([folder / "forgotten"] if with_forgotten else [])):
        for step, of_step in step_folders(root).items():
            if last_step is not None and step > last_step:
                continue
            for attempt, path in attempts_in(of_step).items():
                for record in map(decode_record, decode_frames(path.read_bytes())[0]):
                    if isinstance(record, Generated):
                        if isinstance(record.completion, GivenUp):
                            given_up[record.seed] = record.group
                        elif record.is_unfinished:
                            unfinished[record.seed] = len(record.completion.completion_ids)
                        else:
                            samples[record.seed] = record.group
                    elif isinstance(record, Scored):
                        scored.add(record.group)
                    elif isinstance(record, Composed):
                        composed[step, attempt] = record
    return AheadOnDisk(
        samples,
        {seed: num_tokens for seed, num_tokens in unfinished.items() if seed not in samples},
        given_up,
        scored,
        {step: record for (step, _), record in sorted(composed.items())},
    )


def values(folder: Path) -> list[Mapping[str, float]]:
    """The metrics of every step, as a reader sees them, without what differs between attempts."""
    records = read_metrics(folder / "output" / "metrics.jsonl")
    assert [record.step for record in records] == list(range(1, STEPS + 1))
    return [
        {
            name: value
            for name, value in record.values.items()
            # an episode's seconds are those of the attempt that played it
            if not (name.startswith(_OF_THIS_ATTEMPT) or name.endswith("_seconds"))
        }
        for record in records
    ]


def all_records(folder: Path) -> list[MetricsRecord]:
    return parse_metrics((folder / "output" / "metrics.jsonl").read_text())


def policy(folder: Path) -> dict[str, torch.Tensor]:
    [path] = (folder / "output" / "model").glob("*.safetensors")
    return load_file(path)


def exported_checksum(folder: Path, run: RunConfig) -> int:
    """What CHECKSUM is for the weights that were exported."""
    trained = list(load_policy(folder / "output" / "model", dtype="float32").parameters())
    num_ranks = run.topology.world_size
    tags = b""
    for rank in range(num_ranks):
        if run.strategy == "DDP":
            shards = trained[rank::num_ranks]
        elif run.strategy == "FSDP2":
            shards = [(*of.chunk(num_ranks), *[of[:0]] * num_ranks)[rank] for of in trained]
        else:
            # matrices end to end, and what has no weight decay; padded, so that all ranks have as much
            kinds = (
                [of.flatten() for of in trained if (of.ndim > 1) == is_decayed]
                for is_decayed in (True, False)
            )
            whole = [torch.cat(kind) for kind in kinds]
            padded = [torch.nn.functional.pad(of, (0, -len(of) % (2 * num_ranks))) for of in whole]
            shards = [of.chunk(num_ranks)[rank] for of in padded]
        tags += held_tag(shards, is_on_gpu=False)
    return int(hashlib.sha256(tags).hexdigest()[:8], 16)


def last_state(folder: Path, *, steps: int = STEPS) -> Mapping[str, Any]:
    """Where the run stood in its last checkpoint, the position in the prompts included."""
    path = folder / "output" / "checkpoints" / f"step-{steps:06d}" / "state.json"
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

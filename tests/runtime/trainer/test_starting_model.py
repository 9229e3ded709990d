"""A run on a branch of the Hub that moves between two attempts: it stays on the commit that it began with."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from fake_hub import fill_cache
from fake_job import STEPS, job
from pod_builder import free_port, trainer_environment
from safetensors.torch import load, load_file, save
from trainer_pod import TrainerPod

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.model.source import LocalModel
from grpo_runtime.model.tiny import write_tiny_model
from grpo_runtime.settings import read_trainer_settings
from grpo_runtime.trainer.starting_model import KEPT, ModelCommits

pytestmark = pytest.mark.processes

NAME, FIRST, SECOND = "org/base", "a" * 40, "b" * 40
FAKE_TRAINER = Path(__file__).with_name("fake_trainer.py")


def a_job(*, num_nodes: int = 1, revision: str | None = None, source: str = f"hf://{NAME}") -> RunConfig:
    return job(
        model={"source": source, "revision": revision, "lora": {"rank": 4, "exportMerged": True}},
        hub={"offline": True},
        trainer={"numNodes": num_nodes, "processesPerNode": 1},
    )


def move_main(caches: list[Path], tiny: Path) -> bytes:
    """Put a commit with other weights onto the branch in these caches, which have the first one too.
    Returns the weights of the first."""
    files = {path.name: path.read_bytes() for path in tiny.iterdir()}
    weights = {name: tensor * 2 for name, tensor in load(files["model.safetensors"]).items()}
    changed = {"model.safetensors": save(weights, metadata={"format": "pt"})}
    for cache in caches:
        if not (cache / f"models--{NAME.replace('/', '--')}").exists():
            fill_cache(cache, "model", NAME, files, commit=FIRST)
        fill_cache(cache, "model", NAME, files | changed, commit=SECOND)
    return files["model.safetensors"]


def pod(folder: Path, run: RunConfig, *, home: Path, hang_at: int | None = None, **place: int) -> TrainerPod:
    """In a process that has not imported the Hub's library yet, which reads HF_HOME when it is imported. Only
    the first pod of an attempt mounts the output."""
    index = place.get("node_index", 0)
    environment = {"HF_HOME": str(home), "PYTHONPATH": str(FAKE_TRAINER.parents[1])}
    return TrainerPod(
        folder,
        run,
        hang_at=hang_at,
        environment=environment | ({"GRPO_OUTPUT_DIR": str(folder / "none")} if index else {}),
        command=lambda *places: [sys.executable, str(FAKE_TRAINER), *places],
        **place,
    )


def test_an_adapter_goes_on_with_the_commit_that_it_was_made_for_on_every_pod(tmp_path: Path) -> None:
    tiny, homes = tmp_path / "tiny", [tmp_path / "home-0", tmp_path / "home-1"]
    write_tiny_model(tiny)
    files = {path.name: path.read_bytes() for path in tiny.iterdir()}
    fill_cache(homes[0] / "hub", "model", NAME, files, commit=FIRST)
    first = pod(tmp_path, a_job(), home=homes[0], hang_at=3)
    first.wait_until(lambda progress: progress.step == 3)
    first.terminate()
    assert first.end()[0] == 143

    weights = load(move_main([home / "hub" for home in homes], tiny))
    port, run = free_port(), a_job(num_nodes=2)
    pods = [
        pod(tmp_path, run, home=home, attempt=2, node_index=index, rendezvous_port=port)
        for index, home in enumerate(homes)
    ]
    ends = [each.end() for each in pods]
    assert [code for code, _ in ends] == [0, 0], [message.message for _, message in ends]
    progress = ends[0][1].progress
    assert progress is not None
    assert (progress.resumed_from_step, progress.step) == (3, STEPS)
    commits_of_second_pod = re.findall(r"model org/base is commit (\w+)", pods[1].whole_log())
    assert commits_of_second_pod == [SECOND, FIRST]
    model = tmp_path / "output" / "model"
    assert json.loads((model / "origin.json").read_text())["commit"] == FIRST
    assert json.loads((model / "adapter_config.json").read_text())["revision"] == FIRST
    merged = load_file(tmp_path / "output" / "merged" / "model.safetensors")
    assert merged.keys() == weights.keys()
    assert torch.equal(merged["model.embed_tokens.weight"], weights["model.embed_tokens.weight"])


def commits(folder: Path, run: RunConfig) -> ModelCommits:
    return ModelCommits(read_trainer_settings(trainer_environment(folder, run)))


def test_the_commit_of_a_job_is_that_of_its_first_attempt_and_of_what_it_asks_for(tmp_path: Path) -> None:
    output = tmp_path / "output"
    output.mkdir()
    run = a_job()
    assert commits(tmp_path, run).kept() is None
    for commit in (FIRST, SECOND):
        commits(tmp_path, run).keep(LocalModel(tmp_path, run.model.source, commit=commit))
        assert commits(tmp_path, run).kept() == FIRST
    # what names another model gets that, and its adapter is compared with that
    for another in (a_job(revision=SECOND), a_job(source="hf://org/other")):
        commits(tmp_path, another).keep(LocalModel(tmp_path, another.model.source, commit=SECOND))
        assert commits(tmp_path, another).kept() is None
        assert commits(tmp_path, run).kept() == FIRST
    next_job = run.model_copy(update={"job": run.job.model_copy(update={"uid": "another"})})
    assert commits(tmp_path, next_job).kept() is None
    commits(tmp_path, next_job).keep(LocalModel(tmp_path, run.model.source, commit=SECOND))
    assert commits(tmp_path, next_job).kept() == SECOND


def test_a_model_without_a_commit_keeps_none(tmp_path: Path) -> None:
    (tmp_path / "output").mkdir()
    run = a_job(source="builtin://tiny")
    commits(tmp_path, run).keep(LocalModel(tmp_path, run.model.source, commit=None))
    assert not (tmp_path / "output" / KEPT).exists()

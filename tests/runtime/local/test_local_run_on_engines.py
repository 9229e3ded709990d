"""Examples with real engines, shortened: one is killed, resumed and interrupted, and others are completed.

That the same command continues after Ctrl-C and completes the job: test_local_stops.py, with fake roles.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from local_command import LocalCommand
from polling import wait_until
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_runtime.report.metrics_file import MetricsRecord, read_metrics
from grpo_runtime.weight_sync.tag import TAG_BYTES

pytestmark = pytest.mark.engine

START_SECONDS = 240.0
REAL_RUN = (
    sys.executable,
    "-c",
    "import sys; from grpo_runtime.cli import main; _, job, out = sys.argv\n"
    "sys.exit(main(['run', job, '--output', out]))",
)


def shortened(name: str = "copy-local", *, steps: int = 3) -> dict[str, Any]:
    example = Path(__file__).parents[3] / f"examples/{name}.yaml"
    job: dict[str, Any] = yaml.safe_load(example.read_text())
    job["spec"]["algorithm"]["steps"] = steps
    job["spec"]["checkpoint"] = {"everySteps": 2}
    return job


def records_of_whole(run: LocalCommand, *, steps: int = 3) -> list[MetricsRecord]:
    """The steps of a run, which ends by itself with all of them done, weights verified and nothing left."""
    assert run.end(seconds=START_SECONDS) == 0, run.screen()
    wait_until(lambda: run.others() == [], "no process outlives the command")
    records = read_metrics(run.output / "metrics.jsonl")
    assert [record.step for record in records] == list(range(1, steps + 1))
    return records


def test_the_local_example_goes_on_after_a_kill_and_stops_at_control_c(tmp_path: Path) -> None:
    job = shortened(steps=1000)
    killed = LocalCommand(tmp_path, job, command=REAL_RUN)
    killed.wait_for_steps(3, seconds=START_SECONDS)
    assert len(killed.others()) >= 2  # the supervisor, a rank, and what they started
    killed.process.kill()
    killed.process.wait()
    wait_until(lambda: killed.others() == [], "no process outlives the command that was killed")

    before = killed.num_steps()
    interrupted = LocalCommand(tmp_path, job, command=REAL_RUN)
    interrupted.wait_for_steps(before + 2, seconds=START_SECONDS)
    interrupted.interrupt()
    assert interrupted.end(seconds=120) == 143
    assert "attempt 2 continues from the checkpoint of step" in interrupted.screen()
    records = read_metrics(tmp_path / "out/metrics.jsonl")
    assert [record.step for record in records] == list(range(1, len(records) + 1))
    assert [record.attempt for record in records] == sorted(record.attempt for record in records)
    assert {record.attempt for record in records} == {1, 2}
    assert interrupted.checkpoint() == f"step-{len(records):06d}"


@pytest.mark.matrix
@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_job_trains_with_an_engine_whose_workers_read_the_trainers_memory(
    tmp_path: Path, num_workers: int
) -> None:
    job = shortened()
    job["spec"] |= {
        "engine": job["spec"]["engine"] | {"tensorParallelSize": num_workers},
        "rollout": {"replicas": 1},
    }
    # two workers wait for one another by spinning
    job["spec"]["algorithm"] |= {"promptsPerStep": 4, "groupSize": 4}
    run = LocalCommand(tmp_path, job, command=REAL_RUN)
    records = records_of_whole(run)
    assert run.checkpoint() == "step-000003"
    assert (tmp_path / "out/model/model.safetensors").exists()
    assert all(0 <= record.values["sync/max_probe_error"] < 1e-4 for record in records)
    assert json.loads((tmp_path / "out/run.json").read_text())["weightSync"]["backend"] == "SharedMemory"
    for values in (record.values for record in records):
        assert values["sync/sent_bytes"] == values["sync/bytes"] + TAG_BYTES  # to one engine
        assert values["sync/bytes_per_second"] > 0
        assert values["sync/transfer_seconds"] < values["sync/paused_seconds"] < values["time/sync_seconds"]
        # a step in which all rewards are equal computes nothing
        assert values.get("sampling/sampling_logp_difference/max", 0.0) < 1e-4
    assert "weight sync: " in run.screen()


@pytest.mark.matrix
@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_job_trains_with_engines_that_read_weights_from_a_claim_whose_versions_load_as_models(
    tmp_path: Path, num_workers: int
) -> None:
    claim = tmp_path / "claim"
    claim.mkdir()
    job = shortened()
    job["spec"] |= {
        "engine": job["spec"]["engine"] | {"tensorParallelSize": num_workers},
        "rollout": {"replicas": 1 if num_workers > 1 else 2},
        "weightSync": {"disk": {"to": "pvc://weights/copy", "keep": 2}},
    }
    job["spec"]["algorithm"] |= {"promptsPerStep": 4, "groupSize": 4}
    volume = f"'--volume', 'claim/weights={claim}'"
    run = LocalCommand(
        tmp_path, job, command=(*REAL_RUN[:-1], REAL_RUN[-1].replace("out]", f"out, {volume}]"))
    )
    records = records_of_whole(run)
    assert json.loads((tmp_path / "out/run.json").read_text())["weightSync"]["backend"] == "Disk"
    for values in (record.values for record in records):
        assert values["sync/max_probe_error"] < 1e-4
        assert values["sync/sent_bytes"] == values["sync/bytes"] + TAG_BYTES  # written once for all engines
    versions = sorted(path.name for path in (claim / "copy").glob("version-*"))
    assert versions == ["version-000001-000001", "version-000001-000002"]
    assert (claim / "copy/LATEST").read_text() == f"{versions[-1]}\n"
    # as anybody loads a model
    found = AutoModelForCausalLM.from_pretrained(claim / "copy" / versions[-1]).state_dict()
    trained = AutoModelForCausalLM.from_pretrained(tmp_path / "out/model").state_dict()
    assert found.keys() == trained.keys()
    assert any(not torch.equal(found[name], trained[name]) for name in found)
    AutoTokenizer.from_pretrained(claim / "copy" / versions[-1])


@pytest.mark.matrix
def test_the_colocated_example_trains_with_its_engines_in_processes_of_their_own(tmp_path: Path) -> None:
    job = shortened("copy-colocated")
    job["spec"]["engine"]["process"] = "Own"
    run = LocalCommand(tmp_path, job, command=REAL_RUN)
    run.wait_for_steps(1, seconds=START_SECONDS)
    assert len(run.others()) >= 5  # the supervisor, two ranks, and an engine beside each
    records = records_of_whole(run)
    assert all(0 <= record.values["sync/max_probe_error"] < 1e-4 for record in records)


@pytest.mark.matrix
def test_the_colocated_example_trains_with_its_engines_on_ray_in_two_pods(tmp_path: Path) -> None:
    job = shortened("copy-colocated")
    job["spec"]["trainer"] |= {"numNodes": 2, "processesPerNode": 1}
    job["spec"]["colocated"] = {"executor": "Ray"}
    records = records_of_whole(LocalCommand(tmp_path, job, command=REAL_RUN))
    assert {record.values["sync/engines"] for record in records} == {2.0}
    assert all(0 <= record.values["sync/max_probe_error"] < 1e-4 for record in records)
    assert not list((tmp_path / "out").glob("**/admin-token"))

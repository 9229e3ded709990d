"""The checkpoint and the journal that tests/contract/write_fixtures.py wrote: a run continues from them."""

import shutil
from pathlib import Path

import pytest
from killed_runs import STEPS, all_records, killable_job, run_attempt
from pod_builder import JOB_UID

from grpo_runtime.rollouts.journal.reader import read_step
from grpo_runtime.trainer.checkpoint.contents import read_run_state, read_training_state
from grpo_runtime.trainer.checkpoint.store import CheckpointStore

pytestmark = pytest.mark.processes

STORED = Path(__file__).parents[2] / "contract" / "fixtures" / "run"
NUM_SAMPLES, NUM_IN_TIME = 8, 3
"""Of a step, and those of step 3 that were finished when the run was killed."""


def test_a_run_goes_on_from_a_stored_checkpoint_and_a_stored_journal(tmp_path: Path) -> None:
    output = tmp_path / "output"
    shutil.copytree(STORED, output)
    newest = CheckpointStore(output / "checkpoints", job_uid=JOB_UID, attempt=2, keep=2).newest()
    assert newest is not None
    folder, manifest = newest
    assert (manifest.step, manifest.attempt, read_run_state(folder).step) == (2, 1, 2)
    state = read_training_state(folder)
    assert set(state.reference) == set(state.model)
    found = {step: read_step(output / "journal", step=step, attempt=2, job_uid=JOB_UID) for step in (2, 3)}
    assert {step: len(records.generated) for step, records in found.items()} == {
        2: NUM_SAMPLES,
        3: NUM_IN_TIME,
    }

    shutil.copytree(folder / "model", tmp_path / "model")
    run = killable_job(model={"source": f"file://{tmp_path / 'model'}"})
    assert run_attempt(tmp_path, run, attempt=2) == [0]
    records = all_records(tmp_path)
    assert [record.step for record in records] == list(range(3, STEPS + 1))
    replayed = [record.values.get("journal/replayed_samples") for record in records]
    assert replayed[:2] == [NUM_SAMPLES, NUM_IN_TIME]

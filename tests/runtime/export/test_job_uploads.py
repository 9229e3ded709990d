"""A whole job that uploads its model to a real S3 server at the end."""

import sys
from pathlib import Path

import pytest
from pod_builder import run_config
from s3_server import SECRET_KEY, S3Server, s3_secret

# the trainer pod of a job
sys.path.insert(0, str(Path(__file__).parents[1] / "trainer"))

from local_job import start_trainer

pytestmark = [pytest.mark.engine, pytest.mark.matrix]


def test_a_job_ends_when_its_model_is_in_the_bucket_and_no_log_has_its_secret(
    s3: S3Server, tmp_path: Path
) -> None:
    s3_secret(tmp_path / "volumes" / "secrets" / "store")
    run = run_config(
        mode="Colocated",
        rewards=[{"name": "copy", "builtin": "char_accuracy"}],
        algorithm={"steps": 1, "promptsPerStep": 2, "groupSize": 2},
        sampling={"maxTokens": 4},
        engine={"maxModelLen": 64, "kvCacheMemory": "64Mi"},
        export=[{"to": "s3://models/run-1", "endpoint": s3.endpoint, "secret": "store"}],
    )
    trainer = start_trainer(tmp_path, run)
    code, message = trainer.end()
    assert code == 0, trainer.log()
    assert message.progress is not None
    assert message.progress.checkpoint_step == 1
    exported = tmp_path / "output" / "model"
    uploaded = s3.folder / "buckets" / "models" / "run-1"
    for path in exported.iterdir():
        assert (uploaded / path.name).read_bytes() == path.read_bytes(), path.name
    assert "has all" in trainer.log()
    assert SECRET_KEY not in trainer.log()

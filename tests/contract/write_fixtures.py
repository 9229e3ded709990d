"""What this release stores, small: `python tests/contract/write_fixtures.py` writes tests/contract/fixtures.

- grpojob.json: a GRPOJob as the API server has it while its trainer runs.
- run_config.json: the RunConfig of its pods.
- spec_fields.txt: every field of a spec but the parts of a pod.
- run/: the checkpoint and the journal of a run on a fake engine, which ended with kill -9 a step later. Its
  model has a few thousand parameters.
"""

import json
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGKILL
from typing import Any

from grpo_api.contract.run_config import RunConfig
from grpo_api.resolve import resolve
from grpo_api.v1alpha1.job import parse_job
from grpo_api.v1alpha1.status import (
    Condition,
    ConditionStatus,
    ConditionType,
    GRPOJobStatus,
    LastFailure,
    Phase,
    RoleStatus,
    RolloutStatus,
    WeightSyncStatus,
)

HERE = Path(__file__).parent
FIXTURES = HERE / "fixtures"
STEP = 2
"""Finished steps in the checkpoint."""
NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
RUNTIME = HERE.parent / "runtime"


def stored_run(model: Path) -> RunConfig:
    """The run whose checkpoint and journal are stored, which begins with this model."""
    from killed_runs import killable_job

    return killable_job(model={"source": f"file://{model}"})


def make_helpers_importable() -> None:
    """Those of the tests of the runtime, which this process and a trainer beside it use."""
    sys.path[:0] = [str(RUNTIME), str(RUNTIME / "trainer")]


def grpojob() -> dict[str, Any]:
    """A job with a field of each kind, as the API server has it."""
    job = parse_job(
        {
            "apiVersion": "grpo.dev/v1alpha1",
            "kind": "GRPOJob",
            "metadata": {"name": "copy", "namespace": "team", "uid": "1", "generation": 1},
            "spec": {
                "model": {"source": "builtin://tiny", "lora": {"rank": 8}},
                "dataset": {
                    "source": "builtin://copy",
                    "eval": {"everySteps": 10, "source": "builtin://add"},
                },
                "rewards": [
                    {"name": "copy", "builtin": "char_accuracy"},
                    {"name": "judge", "model": {"source": "hf://org/judge"}, "weight": 0.5},
                ],
                "algorithm": {"steps": 200, "kl": {"beta": 0.04}, "minibatches": 2},
                "rollout": {"replicas": 2},
                "checkpoint": {"claimName": "runs", "everySteps": 10},
            },
        }
    )
    status = GRPOJobStatus(
        observed_generation=1,
        phase=Phase.RUNNING,
        mode="Disaggregated",
        mode_reason="spec.mode is Auto and spec.rollout is set",
        weight_sync=WeightSyncStatus(backend="Gloo", reason="trainer and engines run on CPU"),
        conditions=tuple(
            Condition(
                type=kind,
                status=ConditionStatus.TRUE,
                reason="AsDesired",
                message="all is well",
                last_transition_time=NOW,
                observed_generation=1,
            )
            for kind in (ConditionType.READY, ConditionType.RUNNING, ConditionType.ROLLOUT_READY)
        ),
        step=17,
        total_steps=200,
        progress="17/200",
        reward="0.412",
        policy_version="2.17",
        checkpoint_step=10,
        trainer=RoleStatus(desired=1, ready=1, summary="1/1"),
        rollout=RolloutStatus(desired=2, ready=2, summary="2/2", replicas=2, current=2, selector="a=b"),
        attempt=2,
        restarts=1,
        failures_since_progress=1,
        last_failure=LastFailure(
            attempt=1, role="trainer", pod="copy-0", reason="OOMKilled", exit_code=137, message="no memory"
        ),
        revision="0123abcd",
        image="registry.example.com/runtime:1",
        start_time=NOW,
    )
    return job.to_object() | {"status": status.to_object()}


def write_model(into: Path) -> None:
    """A model of a few thousand parameters."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from grpo_runtime.model.save import save_policy
    from grpo_runtime.model.tiny import char_tokenizer

    torch.manual_seed(0)
    tokenizer = char_tokenizer(max_length_tokens=64)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    save_policy(Qwen2ForCausalLM(config).float(), tokenizer=tokenizer, into=into)


def write_run(into: Path) -> None:
    """The output directory of a run that was killed, with the newest checkpoint and what came after it."""
    from killed_runs import run_attempt

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder / "model")
        codes = run_attempt(folder, stored_run(folder / "model"), attempt=1, kill=f"generation:{STEP + 1}")
        assert codes == [-SIGKILL], (folder / "log-1").read_text()
        output = folder / "output"
        assert (output / "checkpoints" / f"step-{STEP:06d}").is_dir()
        for part in ("checkpoints", "journal"):
            shutil.copytree(output / part, into / part)


def main() -> None:
    """Write all of it anew."""
    from spec_fields import CRD, fields, spec_schema

    make_helpers_importable()
    shutil.rmtree(FIXTURES, ignore_errors=True)
    FIXTURES.mkdir()
    job = grpojob()
    (FIXTURES / "grpojob.json").write_text(json.dumps(job, indent=1) + "\n")
    run = resolve(parse_job({name: part for name, part in job.items() if name != "status"}))
    (FIXTURES / "run_config.json").write_text(json.dumps(run.to_object(), indent=1) + "\n")
    paths = sorted(path for path, _ in fields(spec_schema(CRD)) if ".podTemplate." not in path)
    (FIXTURES / "spec_fields.txt").write_text("".join(f"{path}\n" for path in paths))
    write_run(FIXTURES / "run")


if __name__ == "__main__":
    main()

"""A KL penalty in whole runs over a scripted engine: on two ranks, in bfloat16 and over a resume."""

from pathlib import Path

import pytest
from killed_runs import STEPS, killable_job, policy, run_attempt, values

from grpo_api.contract.run_config import RunConfig
from grpo_api.v1alpha1.spec import Dtype, KLSpec

pytestmark = pytest.mark.processes


def penalised(*, num_ranks: int, strategy: str, dtype: Dtype = Dtype.FLOAT32) -> RunConfig:
    """One update a step, with a reference that stays."""
    run = killable_job(num_ranks=num_ranks, strategy=strategy)
    changes = {"num_iterations": 1, "minibatches": 1, "entropy": None, "kl": KLSpec(beta=0.5)}
    return run.model_copy(
        update={
            "model": run.model.model_copy(update={"dtype": dtype}),
            "algorithm": run.algorithm.model_copy(update=changes),
        }
    )


def divergences(folder: Path) -> list[float]:
    """By step."""
    return [step["kl"] for step in values(folder)]


def log(folder: Path) -> str:
    return "".join(path.read_text(errors="replace")[-6000:] for path in sorted(folder.glob("log-*")))


def test_two_ranks_hold_the_policy_to_the_reference_that_one_does(tmp_path: Path) -> None:
    found = {}
    for num_ranks, strategy in ((1, "DDP"), (2, "DDP")):
        folder = tmp_path / f"{strategy}-{num_ranks}"
        folder.mkdir()
        run = penalised(num_ranks=num_ranks, strategy=strategy)
        assert set(run_attempt(folder, run, attempt=1)) == {0}, log(folder)
        found[strategy, num_ranks] = divergences(folder)
    expected = found["DDP", 1]
    # the policy begins as its reference
    assert expected[0] == pytest.approx(0, abs=1e-7)
    assert min(expected[1:]) > 0
    assert expected[-1] > 1e-6
    assert found["DDP", 2] == pytest.approx(expected, rel=1e-2, abs=1e-7)


def test_in_bfloat16_a_resumed_run_is_held_to_what_the_first_began_with(tmp_path: Path) -> None:
    run = penalised(num_ranks=2, strategy="FSDP2", dtype=Dtype.BFLOAT16)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    assert set(run_attempt(whole, run, attempt=1)) == {0}, log(whole)
    assert -9 in run_attempt(killed, run, attempt=1, kill=f"scored:{STEPS - 2}"), log(killed)
    assert set(run_attempt(killed, run, attempt=2)) == {0}, log(killed)
    assert divergences(whole)[0] == pytest.approx(0, abs=1e-5)
    assert divergences(whole)[-1] > 1e-4
    assert values(killed) == values(whole)
    mine, others = policy(killed), policy(whole)
    assert all(tensor.equal(others[name]) for name, tensor in mine.items())

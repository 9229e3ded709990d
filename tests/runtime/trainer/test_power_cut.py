"""Checkpoints, attempts and models after a power cut, at every moment at which there could be one."""

from pathlib import Path

import pytest
from power_cut import PowerCuts

from grpo_api.v1alpha1.spec import Dtype, OptimizerSpec
from grpo_runtime.errors import SupersededError
from grpo_runtime.local.workspace import State, Workspace
from grpo_runtime.model.load import load_policy, load_tokenizer
from grpo_runtime.model.source import LocalModel
from grpo_runtime.model.tiny import write_tiny_model
from grpo_runtime.trainer.checkpoint.manifest import FileEntry
from grpo_runtime.trainer.checkpoint.model_export import export_model, whole_model
from grpo_runtime.trainer.checkpoint.store import CheckpointStore
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.policy import Policy
from grpo_runtime.trainer.strategy.ddp import DDPStrategy


def store(folder: Path, *, attempt: int) -> CheckpointStore:
    return CheckpointStore(folder / "checkpoints", job_uid="uid", attempt=attempt, keep=2)


def save(target: CheckpointStore, step: int) -> None:
    def write(folder: Path) -> dict[str, FileEntry]:
        (folder / "model").mkdir()
        (folder / "model" / "weights").write_text(f"weights {step}")
        (folder / "state.json").write_text(f"state {step}")
        return {}

    target.save(step, write)


def newest_step(folder: Path) -> int:
    """Where the next attempt resumes."""
    later = store(folder, attempt=99)
    later.begin_attempt()
    found = later.newest()
    return 0 if found is None else found[1].step


def test_no_power_cut_loses_a_checkpoint_that_was_saved_or_shows_half_of_one(tmp_path: Path) -> None:
    root, states = tmp_path / "claim", tmp_path / "states"
    root.mkdir()
    states.mkdir()
    saved = 0

    def resumes(cuts: PowerCuts) -> None:
        for state in cuts.states(states):
            assert newest_step(state) >= saved
            assert not list(state.rglob("*.damaged*")), "half a checkpoint had its name"
            latest = state / "checkpoints" / "LATEST"
            assert not latest.exists() or (latest.parent / latest.read_text().strip() / "state.json").exists()

    cuts = PowerCuts(root, at_each=resumes)
    with cuts.watched():
        target = store(root, attempt=1)
        target.begin_attempt()
        for step in (2, 4, 6):
            save(target, step)
            saved = step
            resumes(cuts)
    assert cuts.num_moments > 20, "the work was not observed"


def test_no_power_cut_shows_half_of_an_exported_model(tmp_path: Path, ranks: Ranks) -> None:
    root, states = tmp_path / "claim", tmp_path / "states"
    root.mkdir()
    states.mkdir()
    write_tiny_model(tmp_path / "tiny")
    policy = Policy(load_policy(tmp_path / "tiny", dtype="float32"), temperature=1.0, dtype=Dtype.FLOAT32)
    strategy = DDPStrategy(policy, optimizer=OptimizerSpec(), total_steps=1, ranks=ranks)
    tokenizer = load_tokenizer(tmp_path / "tiny")
    origin = LocalModel(tmp_path / "tiny", "builtin://tiny", None)

    def is_whole(cuts: PowerCuts) -> None:
        for state in cuts.states(states):
            if (state / "model").exists():
                assert contents(state / "model") == contents(root / "model")

    cuts = PowerCuts(root, at_each=is_whole)
    with cuts.watched():
        export_model(
            root / "model",
            model=policy.model,
            weights=whole_model(strategy),
            tokenizer=tokenizer,
            origin=origin,
        )
    assert all((state / "model").exists() for state in cuts.states(states))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_no_power_cut_lets_an_attempt_back_in_that_was_fenced_off(tmp_path: Path) -> None:
    root, states = tmp_path / "claim", tmp_path / "states"
    root.mkdir()
    states.mkdir()
    cuts = PowerCuts(root, at_each=lambda _: None)
    with cuts.watched():
        store(root, attempt=2).begin_attempt()
    for state in cuts.states(states):
        with pytest.raises(SupersededError, match="attempt 2 has begun"):
            store(state, attempt=1).begin_attempt()
    assert cuts.num_moments > 0, "the work was not observed"


def test_no_power_cut_makes_a_local_run_forget_an_attempt(tmp_path: Path) -> None:
    root, states = tmp_path / "claim", tmp_path / "states"
    states.mkdir()
    workspace = Workspace(root)
    with workspace.held():
        workspace.remember(State(attempt=1))
        cuts = PowerCuts(root, at_each=lambda _: None)
        with cuts.watched():
            workspace.remember(State(attempt=2))
    assert [Workspace(state).state().attempt for state in cuts.states(states)] == [2, 2]

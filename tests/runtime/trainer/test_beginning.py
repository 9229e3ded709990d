"""What another run's checkpoint must share with the model that it is loaded into."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pod_builder import run_config
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from grpo_api.v1alpha1.spec import ResumeLoad
from grpo_runtime.errors import UserError
from grpo_runtime.model.load import load_policy
from grpo_runtime.trainer.checkpoint.beginning import Beginning, shapes_of, state_from
from grpo_runtime.trainer.checkpoint.contents import RunState
from grpo_runtime.trainer.checkpoint.manifest import Manifest
from grpo_runtime.trainer.checkpoint.other_run import OtherCheckpoint


def model_of(folder: Path, *, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A small random model, loaded from a directory that it is saved to."""
    sizes = {
        "vocab_size": 20,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
    torch.manual_seed(seed)
    Qwen2ForCausalLM(Qwen2Config(**(sizes | changes))).save_pretrained(folder)
    return load_policy(folder, dtype="float32")


def checkpoint_of(folder: Path, *, load: ResumeLoad, step: int = 3, **changes: Any) -> Beginning:
    """A checkpoint of another run with such a model."""
    model_of(folder / "model", seed=1, **changes)
    manifest = Manifest(format=1, job_uid="other", attempt=1, step=step, files={})
    other = OtherCheckpoint(folder, manifest, load)
    state = RunState() if load is ResumeLoad.WEIGHTS else RunState(step=step)
    return Beginning(folder, state, other)


def test_weights_alone_are_copied_before_the_policy_is_spread(tmp_path: Path) -> None:
    model = model_of(tmp_path / "own")
    beginning = checkpoint_of(tmp_path, load=ResumeLoad.WEIGHTS)
    beginning.prepare(model, run_config=run_config())
    theirs = load_policy(tmp_path / "model", dtype="float32").state_dict()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in model.state_dict().items())
    assert beginning.training_state(shapes_of(model), run_config=run_config()) is None
    assert (beginning.own_step, beginning.resumed_step, beginning.loaded_step) == (None, None, 3)


def test_with_a_whole_checkpoint_the_strategy_takes_everything_over(tmp_path: Path) -> None:
    model = model_of(tmp_path / "own")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    beginning = checkpoint_of(tmp_path, load=ResumeLoad.CHECKPOINT)
    beginning.prepare(model, run_config=run_config())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    saved = beginning.training_state(shapes_of(model), run_config=run_config())
    assert saved is not None and saved.model.keys() == shapes_of(model).keys()
    assert (beginning.own_step, beginning.resumed_step, beginning.loaded_step) == (None, 3, 3)


def test_steps_of_another_run_that_taught_nothing_do_not_count(tmp_path: Path) -> None:
    state = {"step": 7, "num_tokens": 9, "without_signal": {"no_reward": 7}}
    (tmp_path / "state.json").write_text(json.dumps(state))
    manifest = Manifest(format=1, job_uid="other", attempt=1, step=7, files={})
    found = {load: state_from(OtherCheckpoint(tmp_path, manifest, load)) for load in ResumeLoad}
    assert found[ResumeLoad.CHECKPOINT] == RunState(step=7, num_tokens=9)
    assert found[ResumeLoad.WEIGHTS] == RunState()


@pytest.mark.parametrize("load", ResumeLoad)
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"vocab_size": 24}, "a model with vocab_size 24, and model.source has 20"),
        ({"num_hidden_layers": 3}, "num_hidden_layers 3, and model.source has 2"),
        ({"num_attention_heads": 4}, "num_attention_heads 4, and model.source has 2"),
        ({"intermediate_size": 32}, "layers.0.mlp.down_proj.weight"),
        ({"tie_word_embeddings": True}, "nothing for lm_head.weight"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_with_what_differs(
    load: ResumeLoad, changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    model = model_of(tmp_path / "own")
    beginning = checkpoint_of(tmp_path, load=load, **changes)
    with pytest.raises(UserError, match=says) as refused:
        beginning.prepare(model, run_config=run_config())
        beginning.training_state(shapes_of(model), run_config=run_config())
    assert str(refused.value).startswith("resumeFrom: the checkpoint")


def test_a_model_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    model = model_of(tmp_path / "own")
    beginning = checkpoint_of(tmp_path, load=ResumeLoad.CHECKPOINT)
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "unheard-of"}))
    with pytest.raises(UserError, match="resumeFrom: the model of the checkpoint cannot be read"):
        beginning.prepare(model, run_config=run_config())


def test_a_reference_that_follows_the_policy_must_be_in_the_checkpoint(tmp_path: Path) -> None:
    following = run_config(
        algorithm={"steps": 5, "kl": {"beta": 0.1, "refSync": {"everySteps": 2}}, "groupSize": 4}
    )
    model = model_of(tmp_path / "own")
    beginning = checkpoint_of(tmp_path, load=ResumeLoad.CHECKPOINT)
    with pytest.raises(UserError, match=r"has no reference policy.*resumeFrom\.load to Weights"):
        beginning.training_state(shapes_of(model), run_config=following)
    own = replace(beginning, other=None)
    assert own.training_state(shapes_of(model), run_config=run_config()) is not None


def test_steps_count_in_total(tmp_path: Path) -> None:
    model = model_of(tmp_path / "own")
    beginning = checkpoint_of(tmp_path, load=ResumeLoad.CHECKPOINT, step=5)
    with pytest.raises(UserError, match=r"of step 5, and this job ends at step 5, because algorithm\.steps"):
        beginning.prepare(model, run_config=run_config())

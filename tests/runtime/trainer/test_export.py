"""The trained model at the end of a run."""

import json
from pathlib import Path

from safetensors.torch import load_file

from grpo_api.v1alpha1.spec import Dtype, OptimizerSpec
from grpo_runtime.model.load import load_policy, load_tokenizer
from grpo_runtime.model.local_model import LocalModel
from grpo_runtime.model.tiny import write_tiny_model
from grpo_runtime.trainer.checkpoint.contents import export_model
from grpo_runtime.trainer.distributed import Ranks
from grpo_runtime.trainer.policy import MASTER_DTYPE, Policy
from grpo_runtime.trainer.strategy.ddp import DDPStrategy


def test_an_export_replaces_the_one_before_as_a_whole_and_says_where_the_model_came_from(
    tmp_path: Path, ranks: Ranks
) -> None:
    write_tiny_model(tmp_path / "tiny")
    policy = Policy(load_policy(tmp_path / "tiny", dtype=MASTER_DTYPE), temperature=1.0, dtype=Dtype.BFLOAT16)
    strategy = DDPStrategy(policy, optimizer=OptimizerSpec(), total_steps=1, ranks=ranks)
    into = tmp_path / "output" / "model"
    into.mkdir(parents=True)
    (into / "model-00001-of-00002.safetensors").write_text("of an earlier attempt")
    (into.parent / ".model.tmp").mkdir()
    (into.parent / ".model.tmp" / "half.safetensors").write_text("of an attempt that was killed")

    origin = LocalModel(tmp_path / "tiny", "hf://org/tiny", "0123abc")
    export_model(
        into,
        model=policy.model,
        strategy=strategy,
        tokenizer=load_tokenizer(tmp_path / "tiny"),
        origin=origin,
    )
    assert [path.name for path in into.parent.iterdir()] == ["model"]
    assert [path.name for path in into.glob("*.safetensors")] == ["model.safetensors"]
    assert json.loads((into / "origin.json").read_text()) == {"source": "hf://org/tiny", "commit": "0123abc"}
    saved = load_file(into / "model.safetensors")
    # in float32, whatever the engines compute in
    assert all(tensor.equal(saved[name]) for name, tensor in policy.model.named_parameters())
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in into.iterdir())

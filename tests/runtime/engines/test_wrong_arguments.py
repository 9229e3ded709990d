"""What a wrong `engine.args` of a rollout pod leads to, and a model that vLLM cannot run, with vLLM's own
parser and no engine.

How the pod ends with such an error: tests/runtime/engines/serve/test_rollout_pod.py."""

import json
import os
from pathlib import Path

import pytest
from forks import VLLM_SERVER

pytestmark = pytest.mark.engine

REFUSE = """
import sys
from pathlib import Path
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from grpo_runtime.errors import UserError
from grpo_runtime.engines.vllm.configuration import checked, parse_arguments
from grpo_runtime.engines.vllm.configuration import register_model

folder, *arguments = sys.argv[1:]
if arguments == ["model"]:
    try:
        register_model(Path(folder))
    except UserError as error:
        print("REFUSED", error)
    sys.exit()
for argument in arguments:
    try:
        args = parse_arguments(["--model", folder, argument], add=make_arg_parser)
        checked(lambda: AsyncEngineArgs.from_cli_args(args).create_engine_config(), given=[argument])
    except UserError as error:
        print("REFUSED", str(error).replace(chr(10), "/"))
    else:
        print("REFUSED nothing")
"""


def test_a_wrong_argument_is_named_in_one_sentence(tmp_path: Path) -> None:
    from grpo_runtime.model.tiny import write_tiny_model

    write_tiny_model(tmp_path)
    wrong = {
        "--wibble=1": "unrecognized arguments: --wibble",
        "--help": "unrecognized arguments: --help",
        "--max-num-seqs=many": "argument --max-num-seqs: invalid int value: 'many'",
        "--max-num-seqs": "argument --max-num-seqs: expected one argument",
        "--max-num-seqs=0": "max_num_seqs: Input should be greater than or equal to 1",
        "--quantization=none-such": "Unknown quantization method: none-such",
    }
    found = refusals(tmp_path, *wrong)
    assert len(found) == len(wrong)
    for sentence, wanted in zip(found, wrong.values(), strict=True):
        assert sentence.startswith("vLLM refuses")
        assert "engine.args" in sentence
        assert wanted in sentence


def test_a_model_whose_heads_cpu_attention_has_no_kernel_for_is_refused_by_their_size(tmp_path: Path) -> None:
    from grpo_runtime.model.tiny import write_tiny_model

    write_tiny_model(tmp_path)
    assert refusals(tmp_path, "model") == []
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"head_dim": 16}))
    [sentence] = refusals(tmp_path, "model")
    assert sentence.startswith(
        "model.source: the model's heads have head_dim 16, for which vLLM has no attention"
    )
    assert "take a model with one of 32, 64," in sentence


def test_the_sizes_of_heads_on_cpu_are_those_of_vllm(tmp_path: Path) -> None:
    from grpo_runtime.model.fit import CPU_HEAD_SIZES

    ask = (
        "from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend\n"
        "print('SIZES', *CPUAttentionBackend.get_supported_head_sizes())"
    )
    assert f"SIZES {' '.join(map(str, CPU_HEAD_SIZES))}" in printed(tmp_path, ask)


def refusals(folder: Path, *arguments: str) -> list[str]:
    lines = printed(folder, REFUSE, str(folder), *arguments)
    return [line.removeprefix("REFUSED ") for line in lines if line.startswith("REFUSED")]


def printed(folder: Path, script: str, *arguments: str) -> list[str]:
    """The lines of a script in a process that has imported vLLM already."""
    path, output = folder / "script.py", folder / "output.txt"
    path.write_text(script)
    output.unlink(missing_ok=True)
    fork = VLLM_SERVER.start(path, *arguments, environment=os.environ, output=output)
    assert fork.wait(60) == 0, output.read_text()[-2000:]
    return output.read_text().splitlines()

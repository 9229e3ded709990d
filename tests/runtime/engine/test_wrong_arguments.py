"""What a wrong `engine.args` of a rollout pod leads to, with vLLM's own parser and no engine.

How the pod ends with such an error: tests/runtime/serve/test_rollout_pod.py."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine

REFUSE = """
import sys
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from grpo_runtime.errors import UserError
from grpo_runtime.engine.argument_parser import checked, parse_arguments

folder, *arguments = sys.argv[1:]
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
    done = subprocess.run(
        [sys.executable, "-c", REFUSE, str(tmp_path), *wrong], capture_output=True, text=True, check=False
    )
    found = [line.removeprefix("REFUSED ") for line in done.stdout.splitlines() if line.startswith("REFUSED")]
    assert len(found) == len(wrong), done.stderr[-2000:]
    for sentence, wanted in zip(found, wrong.values(), strict=True):
        assert sentence.startswith("vLLM refuses")
        assert "engine.args" in sentence
        assert wanted in sentence

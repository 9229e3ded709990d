import subprocess
import sys

import pytest

from grpo_runtime.cli import COMMANDS, main
from grpo_runtime.supervisor.supervisor import SupervisorOptions


def test_help_says_what_a_pod_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "GRPO_RUN_CONFIG" in text
    assert all(command in text for command in COMMANDS)


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "rollout"])
def test_help_of_a_command_says_what_it_does_and_shows_an_example(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert f"\n  grpo-runtime {command} " in text
    assert len(text.splitlines()) >= 10


def test_ranks_get_as_long_to_stop_by_hand_as_in_a_pod(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["trainer", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "terminationGracePeriodSeconds (50)" in text
    assert SupervisorOptions().grace_seconds == 50


def test_an_unknown_option_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["trainer", "--prot", "1"])
    assert "--prot" in capsys.readouterr().err


def test_the_supervisor_needs_neither_torch_nor_transformers() -> None:
    script = (
        "import sys, grpo_runtime.cli, grpo_runtime.supervisor.supervisor\n"
        "sys.exit(', '.join({'torch', 'transformers', 'vllm'} & sys.modules.keys()))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.stderr.strip() == ""

"""A run that is asked to stop, as the pods of a suspended job are, over a scripted engine, which is a fake:
the next attempt ends with the weights of a run that nobody disturbed, and nothing is done twice."""

from pathlib import Path

import pytest
from kill_cells import STEP, WAYS, assert_same_run, log
from killed_runs import asked, newest_checkpoint, run_attempt
from scripted_rank import NUM_IN_TIME

from grpo_api.contract.exit_codes import ExitCode

pytestmark = pytest.mark.processes

WAY = "DDP 1"


@pytest.mark.parametrize(
    ("moment", "saved"),
    [
        (f"generation:{STEP}", STEP),
        (f"between steps:{STEP}", STEP),
        # the step is finished, and with it the save that is in flight
        (f"scored:{STEP}", STEP + 1),
        (f"saving:{STEP + 1}", STEP + 1),
    ],
)
def test_a_run_that_is_asked_to_stop_continues_to_the_bits_of_an_undisturbed_one(
    undisturbed: dict[str, Path], tmp_path: Path, moment: str, saved: int
) -> None:
    run = WAYS[WAY]
    codes = run_attempt(tmp_path, run, attempt=1, kill=moment, by="SIGTERM")
    assert codes == [ExitCode.TERMINATED], log(tmp_path, 1)
    assert newest_checkpoint(tmp_path) == saved
    assert run_attempt(tmp_path, run, attempt=2) == [ExitCode.DONE], log(tmp_path, 2)
    assert_same_run(tmp_path, undisturbed[WAY])
    everything, first, second = asked(undisturbed[WAY], 1), asked(tmp_path, 1), asked(tmp_path, 2)
    assert sorted([*first.seeds, *second.seeds]) == sorted(everything.seeds), "a sample was drawn twice"
    if moment.startswith("generation"):
        assert f"step {STEP + 1}: replayed {NUM_IN_TIME} samples of" in log(tmp_path, 2)

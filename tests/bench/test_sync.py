"""`make bench-sync`: its options, its arithmetic and its tables. It is run by hand: it takes minutes."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_bench.machine import Circumstances
from grpo_sync.amounts import (
    BROADCAST,
    COPY,
    Case,
    EngineCase,
    floor_of,
    load,
    median,
    orchestration,
    percentile,
)
from grpo_sync.engine_bench import backends_called
from grpo_sync.model_shape import shape_of
from grpo_sync.options import parse_options
from grpo_sync.report import Result, json_line, tables

FLOORS = {COPY: 0.05, BROADCAST: 0.1}
PHASES = {"prepare": 0.04, "init": 0.0, "start": 0.001, "transfer": 0.08, "finish": 0.001, "load": 0.5}


def a_case(**changes: object) -> Case:
    values = {
        "size_mb": 100,
        "dtype": "bfloat16",
        "num_receivers": 2,
        "way": "gloo",
        "num_bytes": 100_000_000,
        "num_tensors": 99,
        "floor": BROADCAST,
        "goal": 1.3,
        "first": {**PHASES, "init": 0.25, "total": 0.777, **FLOORS},
        "rounds": [{**PHASES, "total": total, **FLOORS} for total in (0.125, 0.2, 0.11)],
    }
    return Case(**(values | changes))  # type: ignore[arg-type]


def a_fleet_sync(*, pause: float) -> dict[str, float]:
    times = {"pack": 0.1, "pause": pause, "init": 0.0, "start": 0.004, "transfer": 0.05, "finish": 0.304}
    return times | {"resume": 0.002, "verify": 0.01, "admit": 0.001, "wall": 0.5, **FLOORS}


ENGINE_CASE = EngineCase(
    size_mb=1,
    num_engines=1,
    backend="gloo",
    num_bytes=1_000_000,
    floor=BROADCAST,
    first=a_fleet_sync(pause=1.0) | {"init": 0.0321},
    rounds=[a_fleet_sync(pause=pause) for pause in (0.01, 0.02, 0.03)],
)
RESULT = Result(
    cases=[a_case(), a_case(way="naive", goal=None, rounds=[{"total": 0.7, **FLOORS}], first={"total": 0.9})],
    engine_cases=[ENGINE_CASE],
    load_average=1.25,
    circumstances=Circumstances("2026-01-02", "abc1234", 2, "A Processor", {"torch": "2"}),
)


def test_a_ratio_is_that_of_a_sync_and_the_floor_measured_with_it() -> None:
    drifting = [{"total": 0.2, **FLOORS}, {"total": 0.6, COPY: 0.1, BROADCAST: 0.5}]
    case = a_case(rounds=drifting)
    assert case.ratios(BROADCAST) == pytest.approx([2.0, 1.2])
    assert case.ratios(COPY) == pytest.approx([4.0, 6.0])
    assert case.gb_per_second == pytest.approx(0.1 / 0.4)


def test_a_fleet_is_compared_with_the_floor_of_its_backend() -> None:
    assert ENGINE_CASE.ratios() == pytest.approx([0.5] * 3)
    shared = replace(ENGINE_CASE, backend="shared_memory", floor=floor_of(1, is_network=False))
    assert shared.ratios() == pytest.approx([1.0] * 3)
    assert floor_of(2, is_network=False) == floor_of(1, is_network=True) == BROADCAST


def test_engines_get_gloo_and_shared_memory_or_those_of_them_that_are_named() -> None:
    assert [backend.value for backend in backends_called(())] == ["Gloo", "SharedMemory"]
    assert [backend.value for backend in backends_called(("disk", "shared_memory"))] == ["SharedMemory"]
    assert backends_called(("disk",)) == []


def test_medians_are_of_the_rounds_and_absent_phases_have_none() -> None:
    rounds = [{"total": total} for total in (3.0, 1.0, 2.0, 100.0)]
    assert median(rounds, "total") == 2.5
    assert median(rounds, "prepare") is None


def test_percentiles_lie_between_the_nearest_values() -> None:
    values = [float(number) for number in range(21)]
    assert percentile(values, 50) == 10.0
    assert percentile(values, 95) == 19.0
    assert percentile([7.0], 95) == 7.0


def test_loading_is_what_finish_takes_longer_than_a_verb_that_does_nothing() -> None:
    assert load(a_fleet_sync(pause=0.01)) == pytest.approx(0.3)
    assert load({"start": 0.2, "finish": 0.1}) == 0.0


def test_orchestration_is_all_but_packing_transfer_and_loading() -> None:
    # pause, start, as much again for finish, resume, verify, admit
    assert orchestration(a_fleet_sync(pause=0.01)) == pytest.approx(
        0.01 + 0.004 + 0.004 + 0.002 + 0.01 + 0.001
    )


def test_the_tables_have_every_case_with_its_goal() -> None:
    lines = tables(RESULT).splitlines()
    assert "load average 1.2 before" in lines[1]
    gloo, naive = lines[4].split(), lines[5].split()
    assert lines[4].startswith("100 MB bfloat16 to 2: gloo")
    assert gloo[-8:] == ["1.25", "1.10", "to", "2.00", "<=", "1.3", "0.777", "0.25"]
    assert naive[5:10] == ["naive", "-", "-", "-", "-"]
    assert "<=" not in naive
    fleet = lines[8].split()
    assert fleet[:5] == ["1", "MB", "to", "1:", "gloo"]
    assert fleet[-4:] == ["0.50", "<=", "1.15", "0.0321"]
    assert fleet[-6:-4] == ["0.0410", "0.0500"]


def test_the_json_line_has_every_round() -> None:
    line = json_line(RESULT)
    assert "\n" not in line
    read = json.loads(line)
    assert [len(case["rounds"]) for case in read["receivers"]] == [3, 1]
    assert read["receivers"][0]["ratios"] == {COPY: 2.5, BROADCAST: 1.25}
    assert read["engines"][0]["orchestration"] == {"p50": 0.041, "p95": 0.05}
    assert (read["commit"], read["load_average"]) == ("abc1234", 1.25)


@pytest.mark.parametrize("num_parameters", [250_000, 500_000, 25_000_000, 250_000_000, 500_000_000])
def test_a_model_has_the_size_that_was_asked_for(num_parameters: int) -> None:
    shape = shape_of(num_parameters)
    assert 0.99 * num_parameters < shape.num_parameters <= num_parameters
    sizes = {len(found) for found in shape.tensors().values()}
    assert sizes == {1, 2}
    assert shape.hidden % shape.num_heads == 0


def test_too_few_parameters_are_no_transformer() -> None:
    with pytest.raises(ValueError, match="too few"):
        shape_of(1000)


def test_options_are_numbers_in_order_and_zero_leaves_a_part_out() -> None:
    options = parse_options("", ["--sizes", "100,1,100", "--receivers", "2", "--engines", "0"])
    assert (options.sizes, options.receivers, options.engines) == ((1, 100), (2,), ())
    assert options.backends == ()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--sizes", "1,x"], "--sizes 1,x: give numbers from 1 to 4000"),
        (["--receivers", "99"], "--receivers 99: give numbers from 1 to 8"),
        (["--receivers", "0", "--engines", "0"], "there is nothing to measure"),
        (["--json", "/nowhere/at/all.jsonl"], "there is no directory /nowhere/at"),
    ],
)
def test_wrong_options_are_reported(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_options("", arguments)
    assert why in capsys.readouterr().err


def test_make_bench_sync_hands_its_options_on() -> None:
    given = ["SIZES=1", "RECEIVERS=1,2", "ENGINES=0", "BACKENDS=gloo", "JSON=results.jsonl"]
    planned = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "bench-sync", *given],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    options = "--sizes '1' --receivers '1,2' --engines '0' --backends 'gloo' --json 'results.jsonl'"
    assert options in " ".join(planned.replace("\\\n", " ").split())

"""`make bench-sync`: its arithmetic. It is run by hand: it takes minutes."""

from dataclasses import replace

import pytest

from grpo_sync.amounts import (
    BROADCAST,
    COPY,
    Case,
    EngineCase,
    floor_of,
    load,
    orchestration,
)

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


def test_loading_is_what_finish_takes_longer_than_a_verb_that_does_nothing() -> None:
    assert load(a_fleet_sync(pause=0.01)) == pytest.approx(0.3)
    assert load({"start": 0.2, "finish": 0.1}) == 0.0


def test_orchestration_is_all_but_packing_transfer_and_loading() -> None:
    # pause, start, as much again for finish, resume, verify, admit
    assert orchestration(a_fleet_sync(pause=0.01)) == pytest.approx(
        0.01 + 0.004 + 0.004 + 0.002 + 0.01 + 0.001
    )

"""How long each phase of a sync may take."""

import pytest

from grpo_runtime.weight_sync.deadlines import PhaseDeadlines


@pytest.mark.parametrize(
    ("phase", "took", "limit"),
    [
        ("pause", None, 15.0),
        ("pause", 14.0, 15.0),
        ("finish", None, 300.0),
        ("finish", 0.1, 15.0),
        ("finish", 20.0, 100.0),
        ("finish", 200.0, 300.0),
    ],
)
def test_a_phase_may_take_some_times_what_it_took_before(
    phase: str, took: float | None, limit: float
) -> None:
    deadlines = PhaseDeadlines(300.0)
    if took is not None:
        deadlines.note(phase, took)
    assert deadlines.of(phase) == limit


def test_no_phase_takes_longer_than_the_whole_deadline() -> None:
    assert {PhaseDeadlines(2.0).of(phase) for phase in ("pause", "finish")} == {2.0}

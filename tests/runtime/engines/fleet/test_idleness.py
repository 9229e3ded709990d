"""How long engines have nothing to do, by a clock of the test's own."""

from grpo_runtime.engines.fleet.idleness import IdleTime


def test_an_engine_is_idle_from_when_it_could_work_until_it_has_work() -> None:
    idle = IdleTime()
    idle.note("a", is_idle=True, now=1.0)
    idle.note("a", is_idle=True, now=2.0)
    idle.note("a", is_idle=False, now=4.0)
    idle.note("a", is_idle=False, now=5.0)
    idle.note("a", is_idle=True, now=10.0)
    idle.note("a", is_idle=False, now=10.5)
    idle.note("b", is_idle=False, now=3.0)
    assert idle.take(now=20.0) == {"a": 3.5}
    assert idle.take(now=30.0) == {}


def test_an_engine_that_is_idle_still_counts_until_now_and_from_then_on() -> None:
    idle = IdleTime()
    idle.note("a", is_idle=True, now=1.0)
    assert idle.take(now=4.0) == {"a": 3.0}
    idle.note("a", is_idle=False, now=6.0)
    idle.add("a", 0.25)
    idle.add("b", 0.5)
    assert idle.take(now=9.0) == {"a": 2.25, "b": 0.5}

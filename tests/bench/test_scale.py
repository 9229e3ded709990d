"""`make bench-scale`: its arithmetic. It is run by hand: it takes minutes."""

import pytest

from grpo_bench.machine import Circumstances
from grpo_scale.report import Delays, Result
from grpo_scale.usage import num_writes

QUIET = Delays(num_events=200, p50=0.04, p95=0.11, p99=0.15)


def a_result(**changes: object) -> Result:
    values = {
        "num_jobs": 200,
        "built_in_pods_per_second": 141.0,
        "first_jobs_per_second": 15.0,
        "storm_jobs_per_second": 14.0,
        "storm_pods_per_second": 42.0,
        "at_rest": QUIET,
        "in_storm": QUIET,
        "built_in_cpu_ms_per_pod": 12.0,
        "cpu_ms_per_job": {"operator": 30.0, "kube-apiserver": 60.0},
        "requests_per_job": 14.0,
        "resident_kib_per_job": 90.0,
        "resident_kib_per_further_job": 50.0,
        "writes_after_restart": 0,
        "writes_in_resync": 0,
        "cores": {"operator": 0.5, "kube-apiserver": 1.0, "bench": 0.001},
        "cores_of_others": 0.1,
        "circumstances": Circumstances("2026-11-22", "abc1234", 2, "a CPU", {}),
    }
    return Result(**(values | changes))  # type: ignore[arg-type]


def test_percentiles_are_those_of_the_delays():
    found = Delays.of([0.01 * number for number in range(101)])
    assert (found.num_events, found.p50, found.p95, found.p99) == pytest.approx((101, 0.5, 0.95, 0.99))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"cores": {"operator": 0.97}}, "the operator, whose one core was busy"),
        ({"cores": {"operator": 0.6, "kube-apiserver": 1.3}}, "the machine: 2.00 of its 2 cores were busy"),
        ({"cores": {"operator": 0.2}, "cores_of_others": 1.75}, "other work on the machine, 1.75 cores"),
        ({"cores": {"operator": 0.3}}, "waiting: only 0.40 of 2 cores were busy"),
    ],
)
def test_what_bound_the_storm_is_named(changes, what):
    assert a_result(**changes).bound_by.startswith(what)


def test_an_object_that_was_made_changed_or_deleted_is_a_write():
    before = {("pods", "a"): "1", ("pods", "b"): "1", ("pods", "c"): "1"}
    after = {("pods", "a"): "1", ("pods", "b"): "2", ("pods", "d"): "3"}
    assert (num_writes(before, before), num_writes(before, after)) == (0, 3)

"""One operator for several teams: what happens to the jobs of one is not slowed by hundreds of another's."""

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from .operator_harness import Namespace, OperatorProcess, wait_until

pytestmark = [pytest.mark.apiserver, pytest.mark.matrix]

NUM_JOBS = 500
CROWD = [f"job-{index}" for index in range(NUM_JOBS)]
ONE = "copy"


def each(do: Callable[[str], object]) -> None:
    """Do something to each job of the crowd, several at a time."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(do, CROWD))


def change(namespace: Namespace, job: str, *, seconds: int) -> None:
    """A change of a spec, which its job follows by the generation in its status alone."""
    namespace.patch_job({"spec": {"activeDeadlineSeconds": seconds}}, job)


def generations(namespace: Namespace) -> list[int]:
    """The generation that the status of each job is about."""
    return [job.get("status", {}).get("observedGeneration", 0) for job in namespace.jobs()]


def seconds_to_follow(namespace: Namespace, *, seconds: int) -> float:
    """How long the status takes to follow a change of the only job of a namespace."""
    change(namespace, ONE, seconds=seconds)
    began = time.monotonic()
    wanted = namespace.job(ONE)["metadata"]["generation"]
    wait_until(
        "the status follows",
        lambda: generations(namespace) == [wanted],
        seconds=120,
        poll_seconds=0.01,
    )
    return time.monotonic() - began


def test_500_jobs_of_one_namespace_do_not_slow_the_news_of_another(
    namespace: Namespace, elsewhere: Namespace, operator: OperatorProcess
):
    """Counted in jobs of the crowd that come before, and in how long the whole crowd takes: neither depends
    on the machine."""
    operator.start("--resync-seconds", "600", is_everywhere=True)
    namespace.apply_job(ONE, suspend=True)
    wait_until("it has a status", lambda: generations(namespace) == [1])
    alone = statistics.median(seconds_to_follow(namespace, seconds=1000 + index) for index in range(5))

    each(lambda name: elsewhere.apply_job(name, suspend=True))
    wait_until("all have a status", lambda: generations(elsewhere) == [1] * NUM_JOBS, seconds=120)
    operator.freeze()
    each(lambda name: change(elsewhere, name, seconds=2000))
    operator.thaw()
    began = time.monotonic()
    beside = seconds_to_follow(namespace, seconds=3000)
    wait_until("the crowd is followed", lambda: generations(elsewhere) == [2] * NUM_JOBS, seconds=120)
    whole = time.monotonic() - began

    mine = int(namespace.job(ONE)["metadata"]["resourceVersion"])
    before = sum(int(job["metadata"]["resourceVersion"]) < mine for job in elsewhere.jobs())
    print(
        f"the status follows in {alone:.3f} s alone and in {beside:.3f} s beside {NUM_JOBS} jobs, which take "
        f"{whole:.1f} s; {before} of them came before"
    )
    assert before < NUM_JOBS / 2
    assert beside < whole / 2

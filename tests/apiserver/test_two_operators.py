"""Two operators on one namespace: with a Lease one acts and one stands by, without it both do no harm."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from kubernetes import client, config, watch
from urllib3.exceptions import HTTPError

from .fake_kubelet import FakeKubelet
from .operator_harness import GROUP, Namespace, OperatorProcess, killed_at_the_end, wait_for_pods, wait_until

pytestmark = pytest.mark.apiserver

FAST = ("--resync-seconds", "0.5", "--poll-seconds", "0.5")
ELECTED = ("--leader-elect=true", *FAST)


@pytest.fixture
def pair(namespace: Namespace, tmp_path: Path) -> Iterator[tuple[OperatorProcess, OperatorProcess]]:
    made = (
        OperatorProcess(namespace, tmp_path / "first.log"),
        OperatorProcess(namespace, tmp_path / "second.log"),
    )
    with killed_at_the_end(*made):
        yield made


class History:
    """Every state the API server stored of the namespace's jobs and pods, from its own watch."""

    def __init__(self, namespace: Namespace) -> None:
        api = config.new_client_from_config(str(namespace.kubeconfig))
        objects, core = client.CustomObjectsApi(api), client.CoreV1Api(api)
        self.statuses: list[dict[str, Any]] = []
        self.pods: list[str] = []
        self._watches = (watch.Watch(), watch.Watch())

        def follow_jobs() -> None:
            events = self._watches[0].stream(
                objects.list_namespaced_custom_object, *GROUP, namespace.name, "grpojobs"
            )
            for event in events:
                status = event["object"].get("status")
                if status and (not self.statuses or self.statuses[-1] != status):
                    self.statuses.append(status)

        def follow_pods() -> None:
            for event in self._watches[1].stream(core.list_namespaced_pod, namespace.name):
                if event["type"] == "ADDED":
                    self.pods.append(event["object"].metadata.name)

        def until_the_server_ends(follow: Callable[[], None]) -> None:
            # The server of these tests goes down while the last watch still waits for news.
            with suppress(HTTPError):
                follow()

        for follow in (follow_jobs, follow_pods):
            Thread(target=until_the_server_ends, args=(follow,), daemon=True).start()

    def stop(self) -> None:
        for one in self._watches:
            one.stop()


@pytest.fixture
def history(namespace: Namespace) -> Iterator[History]:
    made = History(namespace)
    yield made
    made.stop()


@pytest.mark.matrix
def test_two_operators_without_a_lease_lead_a_job_through_its_life_as_one_would(
    namespace: Namespace, pair: tuple[OperatorProcess, OperatorProcess], history: History
):
    for operator in pair:
        operator.start(*FAST)
    kubelet = FakeKubelet(namespace)
    namespace.apply_job()
    (trainer,) = wait_for_pods(namespace, "trainer", 1)
    kubelet.run(trainer)
    for pod in wait_for_pods(namespace, "rollout", 2):
        kubelet.run(pod)
    wait_until("it runs", lambda: namespace.status().get("phase") == "Running")
    kubelet.end(trainer, exit_code=1, message="boom")
    (trainer,) = wait_for_pods(namespace, "trainer", 1, attempt=2)
    kubelet.run(trainer)
    lost = namespace.pods("rollout")[0].metadata
    namespace.core.delete_namespaced_pod(lost.name, namespace.name)
    wait_until(
        "the engine is replaced",
        lambda: (
            len(found := namespace.pods("rollout")) == 2
            and lost.uid not in {pod.metadata.uid for pod in found}
        ),
    )
    for pod in namespace.pods("rollout"):
        kubelet.run(pod)
    wait_until("all run again", lambda: namespace.status()["rollout"]["summary"] == "2/2")
    kubelet.end(trainer, exit_code=0, reason="Completed")
    wait_until("it is complete", lambda: namespace.condition("Complete").get("status") == "True")
    wait_until("engines are gone", lambda: namespace.pods("rollout") == [])
    wait_until("the counts say so", lambda: namespace.status()["rollout"].get("ready", 0) == 0)
    status = namespace.status()
    assert (status["attempt"], status["restarts"], status["disruptions"]) == (2, 1, 0)

    # two attempts of the trainer, two engines and one replacement. Each was made once, but for an engine that
    # one of them took away at the end while the other had not heard of the end yet, and made it again. One
    # that had not looked at the lost engine while it was there gives its name to the replacement
    assert 4 <= len(set(history.pods)) <= 5
    assert 5 <= len(history.pods) <= 6
    # no state came back after it was left, but for two engines that were one for a moment, and there were no
    # more of them than things that happened
    states = [json.dumps(status, sort_keys=True) for status in history.statuses]
    assert len(states) - len(set(states)) <= 2
    assert len(states) <= 25
    for operator in pair:
        # what is gone was taken away by the other
        bad = re.findall(r" (?:WARNING|ERROR) .*", operator.log())
        assert all("not found; next try in" in line for line in bad), operator.log()
        assert operator.stop() == 0


def test_a_standby_makes_nothing_and_takes_over_at_once_from_a_leader_that_stops_in_order(
    namespace: Namespace, pair: tuple[OperatorProcess, OperatorProcess]
):
    leader, standby = pair
    leader.start(*ELECTED)
    standby.start(*ELECTED, until="standing by")
    namespace.apply_job("before")
    wait_until("it is served", lambda: namespace.status("before").get("phase") == "Starting")
    assert "made" in leader.log() and "made" not in standby.log()
    assert leader.stop() == 0
    namespace.apply_job("after")
    wait_until("it is served", lambda: namespace.status("after").get("phase") == "Starting", seconds=10)
    assert "default/before: made" not in standby.log()
    assert len(namespace.pods_of("before", "trainer")) == len(namespace.pods_of("after", "trainer")) == 1
    assert standby.stop() == 0


def test_a_standby_ends_in_order_when_asked(
    namespace: Namespace, pair: tuple[OperatorProcess, OperatorProcess]
):
    leader, standby = pair
    leader.start(*ELECTED)
    standby.start(*ELECTED, until="standing by")
    assert standby.stop() == 0
    namespace.apply_job()
    wait_until("the leader still leads", lambda: namespace.status().get("phase") == "Starting")
    assert leader.stop() == 0


def test_a_leader_that_hung_is_succeeded_and_ends_when_it_wakes_up(
    namespace: Namespace, pair: tuple[OperatorProcess, OperatorProcess]
):
    leader, standby = pair
    leader.start(*ELECTED)
    standby.start(*ELECTED, until="standing by")
    leader.freeze()
    namespace.apply_job()
    wait_until("the standby has taken over", lambda: "leads" in standby.log())
    wait_until("the job is served", lambda: namespace.status().get("phase") == "Starting")
    leader.thaw()
    assert leader.wait_for_end(seconds=60) == 1
    assert re.search(r"another operator (has taken|may take)", leader.log())
    assert "made" not in leader.log()
    assert len(namespace.pods("trainer")) == 1
    assert standby.stop() == 0

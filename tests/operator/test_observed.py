"""What is seen of pods, engines, trainers and other jobs, and what follows from it alone."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from grpo_api.v1alpha1.status import Phase
from grpo_operator.observe.observed import (
    ContainerTermination,
    EngineView,
    OtherJob,
    PodView,
    ReasonMessage,
    TrainerReport,
)

NOW = datetime(2026, 11, 25, tzinfo=UTC)
POD = PodView("pod", "uid", position=(0, 0), phase="Running", is_ready=True, is_deleting=False)
DONE, FAILED = (ContainerTermination("trainer", code, "OOMKilled", "", NOW) for code in (0, 137))
WHY = ReasonMessage("Evicted", "the node was low on memory")


def pod(**changes: object) -> PodView:
    return replace(POD, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "is_done", "has_failed"),
    [
        ({"phase": "Running"}, False, False),
        ({"phase": "Succeeded", "termination": DONE}, True, False),
        ({"phase": "Failed", "termination": DONE}, True, False),
        ({"phase": "Failed", "termination": FAILED}, False, True),
        ({"phase": "Failed"}, False, True),
        ({"phase": "Running", "disruption": WHY}, False, True),
        ({"phase": "Running", "disruption": WHY, "termination": DONE}, True, False),
        ({"phase": "Running", "termination": FAILED}, False, True),
    ],
)
def test_a_pod_is_done_by_its_exit_code_alone_and_has_failed_when_it_is_gone_without(
    seen: dict[str, object], is_done: bool, has_failed: bool
) -> None:
    assert (pod(**seen).is_done, pod(**seen).has_failed) == (is_done, has_failed)


@pytest.mark.parametrize(
    ("seen", "has_never_run"),
    [
        ({"phase": "Failed"}, True),
        ({"phase": "Pending"}, False),
        ({"phase": "Failed", "termination": FAILED}, False),
        ({"phase": "Failed", "last_termination": FAILED}, False),
        ({"phase": "Failed", "restarts": 1}, False),
    ],
)
def test_a_pod_has_never_run_when_it_is_over_and_no_container_of_it_has_ended(
    seen: dict[str, object], has_never_run: bool
) -> None:
    assert pod(**seen).has_never_run is has_never_run


@pytest.mark.parametrize(
    ("seen", "is_alive"),
    [
        ({"phase": "Pending"}, True),
        ({"phase": "Running"}, True),
        ({"phase": "Running", "is_deleting": True}, False),
        ({"phase": "Succeeded"}, False),
        ({"phase": "Failed"}, False),
    ],
)
def test_a_pod_is_alive_until_it_has_ended_or_is_deleted(seen: dict[str, object], is_alive: bool) -> None:
    assert pod(**seen).is_alive is is_alive


def test_an_engine_has_several_pods_also_when_only_one_of_them_is_left() -> None:
    members = (POD, pod(name="other", node_index=1))
    for found, is_whole, has_several in (
        (members, True, True),
        (members[:1], False, True),
        (members[:1], True, False),
    ):
        engine = EngineView(**vars(POD), members=found, is_whole=is_whole)
        assert engine.pods == found
        assert engine.has_several_pods is has_several
    assert POD.pods == (POD,)


def test_a_report_is_news_until_it_is_written_or_another_operator_wrote_one() -> None:
    assert TrainerReport().is_news
    assert not TrainerReport(is_written=True).is_news
    assert not TrainerReport(is_superseded=True).is_news


def test_a_trainer_answers_when_its_last_answer_came_and_could_be_read() -> None:
    assert TrainerReport().is_answering
    assert not TrainerReport(problem=WHY).is_answering
    assert not TrainerReport(silent_since=NOW).is_answering


@pytest.mark.parametrize("phase", Phase)
def test_another_job_has_ended_when_its_end_is_final(phase: Phase) -> None:
    other = OtherJob(uid="uid", is_there=True, phase=phase)
    assert other.has_ended == (phase in {Phase.SUCCEEDED, Phase.FAILED})

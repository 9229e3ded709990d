"""ttlSecondsAfterFinished: when a job is deleted, and when it is not."""

from dataclasses import replace
from datetime import timedelta

import pytest

from grpo_api.v1alpha1.status import ConditionType, Phase
from grpo_operator.cluster.kinds import JOBS
from grpo_operator.plan.draft import Deletion, Draft, Stage
from grpo_operator.plan.notes import notes_of

from .fake_cluster import NOW, FakeCluster, spec, termination

TTL = 300


def ended(*, code: int = 0, ttl: int | None = TTL) -> FakeCluster:
    cluster = FakeCluster(spec(ttlSecondsAfterFinished=ttl)).start()
    cluster.end(cluster.pod("trainer-a1-0"), termination(code, "the end"))
    cluster.settle()
    assert cluster.status.completion_time == NOW
    return cluster


@pytest.mark.parametrize("code", [0, 40])
def test_a_job_is_deleted_exactly_when_its_time_is_over_whether_it_succeeded_or_failed(code: int):
    cluster = ended(code=code)
    cluster.now = NOW + timedelta(seconds=TTL - 1)
    cluster.settle()
    assert (cluster.is_gone, cluster.plan().requeue_after) == (False, 1)
    cluster.now += timedelta(seconds=1)
    assert cluster.plan().delete == (Deletion(JOBS, cluster.name, cluster.uid),)


def test_an_operator_that_was_away_deletes_it_when_it_returns():
    cluster = ended()
    cluster.now = NOW + timedelta(days=3)
    cluster.step()
    assert cluster.is_gone


def test_zero_seconds_are_at_once():
    cluster = ended(ttl=0)
    assert cluster.is_gone


@pytest.mark.parametrize(
    ("code", "both", "ttl"), [(40, True, 60), (0, True, TTL), (40, False, 60), (0, False, None)]
)
def test_a_job_that_has_failed_has_a_time_of_its_own(code: int, both: bool, ttl: int | None):
    times = {"ttlSecondsAfterFailed": 60} | ({"ttlSecondsAfterFinished": TTL} if both else {})
    cluster = FakeCluster(spec(**times)).start()
    cluster.end(cluster.pod("trainer-a1-0"), termination(code, "the end"))
    cluster.settle()
    assert cluster.plan().requeue_after == ttl and not cluster.is_gone
    cluster.now = NOW + timedelta(seconds=TTL)
    cluster.settle()
    assert cluster.is_gone == (ttl is not None)


def test_a_job_without_the_field_stays_and_so_does_one_that_has_not_ended():
    cluster = ended(ttl=None)
    running = FakeCluster(spec(ttlSecondsAfterFinished=0)).start()
    for each in (cluster, running):
        each.now = NOW + timedelta(days=3)
        each.settle()
        assert not each.is_gone


def test_a_time_that_is_set_after_the_end_counts_from_the_end():
    cluster = ended(ttl=None)
    cluster.now = NOW + timedelta(hours=1)
    cluster.spec = spec(ttlSecondsAfterFinished=TTL)
    cluster.step()
    assert cluster.is_gone


def test_a_job_whose_spec_cannot_be_read_stays_and_says_so():
    cluster = ended()
    cluster.spec, cluster.problem, cluster.now = None, "spec.new: unknown", NOW + timedelta(days=3)
    cluster.settle()
    assert not cluster.is_gone
    assert cluster.status.notes == (
        "whether ttlSecondsAfterFinished is to delete this job is not known, because its spec cannot be "
        "read: spec.new: unknown"
    )


def test_a_job_that_a_gitops_controller_tracks_stays_and_says_so():
    cluster = FakeCluster(spec(ttlSecondsAfterFinished=TTL)).start()
    cluster.tracked_by = "Argo CD (argocd.argoproj.io/tracking-id)"
    cluster.end(cluster.pod("trainer-a1-0"), termination(0))
    (event,) = (event for event in cluster.plan().events if event.why.reason == "NotDeleted")
    cluster.settle()
    cluster.now = NOW + timedelta(days=3)
    plan = cluster.settle()
    assert not cluster.is_gone and plan.requeue_after is None
    assert cluster.status.phase is Phase.SUCCEEDED
    for said in (event.why.message, cluster.status.notes, cluster.condition(ConditionType.READY).message):
        assert "because Argo CD (argocd.argoproj.io/tracking-id) tracks it" in said
    assert "NotDeleted" not in {event.why.reason for event in plan.events}


def test_a_note_names_the_field_that_is_set():
    cluster = FakeCluster(spec(ttlSecondsAfterFailed=TTL)).start()
    cluster.tracked_by = "Flux (kustomize.toolkit.fluxcd.io/name)"
    cluster.end(cluster.pod("trainer-a1-0"), termination(40, "the end"))
    cluster.settle()
    assert cluster.status.notes.startswith("ttlSecondsAfterFailed does not delete this job")


def test_a_note_about_the_right_goes_with_the_field():
    observed = FakeCluster(spec(ttlSecondsAfterFinished=0)).start().observed()
    remembered = replace(observed.remembered, undeletable="forbidden: cannot delete")
    draft = replace(Draft.begin(observed, NOW), stage=Stage.ENDED)
    refused = replace(observed, remembered=remembered)
    assert "forbidden" in notes_of(draft, refused)
    assert notes_of(draft, replace(refused, job=replace(observed.job, spec=spec()))) == ""

"""Real messages of schedulers, kubelets and Events become messages with a fix."""

from typing import Any

import pytest

from grpo_operator.observe.pod_reasons import no_folder, not_pulled, not_scheduled, not_started


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        ('0/1 nodes are available: persistentvolumeclaim "big" not found. not found',
         "PersistentVolumeClaim big does not exist: create it, or correct the name in the spec"),
        ("0/3 nodes are available: 1 Insufficient memory, 3 Insufficient nvidia.com/gpu. preemption: 0/3",
         "no node has enough memory and nvidia.com/gpu free: lower trainer.resources, or add a node"),
        ("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
         "no volume fits one of its PersistentVolumeClaims: see `kubectl describe pvc`"),
    ],
)  # fmt: skip
def test_a_pod_that_no_node_takes_says_what_is_missing_and_where_to_change_it(message: str, fix: str):
    found = not_scheduled("Unschedulable", message, role="trainer")
    assert found.reason == "Unschedulable"
    assert found.message.startswith(f"{fix} (0/")
    assert "preemption" not in found.message and "not found. not" not in found.message


def test_an_unknown_message_of_a_scheduler_is_kept():
    found = not_scheduled("Unschedulable", "0/1 nodes: untolerated taint {x: y}", role="trainer")
    assert found.message == "0/1 nodes: untolerated taint {x: y}"


@pytest.mark.parametrize(
    "message",
    [
        "0/1 nodes are available: 1 optimistic rejection in PostFilter.",
        "0/1 nodes are available: 1 rejection in Unreserve.",
        "rejected due to timeout after waiting 20s at plugin Coscheduling",
        "0/2 nodes are available: pre-filter pod x cannot find enough sibling pods, current pods number: 1.",
    ],
)
def test_a_pod_that_was_turned_away_because_of_another_one_says_so(message: str):
    found = not_scheduled("Unschedulable", message, role="trainer")
    assert found.reason == "WaitingForGroup"
    assert "one of them finds none" in found.message and message.rstrip(".") in found.message


def test_both_reasons_of_an_image_that_cannot_be_pulled_are_one_sentence():
    why = "failed to pull and unpack image: connection refused"
    first = not_pulled("nope:1", why, [])
    later = not_pulled("nope:1", f'Back-off pulling image "nope:1": ErrImagePull: {why}', [])
    assert first == later
    assert first.reason == "ErrImagePull"
    assert first.message.startswith(f"the image nope:1 cannot be pulled: {why}")


def test_a_pull_secret_that_is_not_there_is_named():
    message = (
        "Unable to retrieve some image pull secrets (mine); attempting to pull the image may not succeed."
    )
    event = happening("FailedToRetrieveImagePullSecret", message)
    found = not_pulled("private:1", "401 Unauthorized", [event])
    assert found.message.startswith("Secret mine of imagePullSecrets does not exist")
    assert "private:1" in found.message and "401" in found.message


def test_the_event_of_a_mount_says_more_than_the_summary_that_follows_it():
    mount = happening("FailedMount", 'configmap "rewards" not found', at="12:00:01")
    summary = happening("FailedMount", "Unable to attach or mount volumes: timed out", at="12:02:04")
    found = not_started([mount, summary])
    assert found is not None and "rewards" in found.message


def test_a_warning_from_before_the_image_was_pulled_is_ignored():
    mount = happening("FailedMount", "timed out waiting for the condition", at="12:00:01")
    pulling = happening("Pulling", "pulling", at="12:00:09", kind="Normal")
    assert not_started([mount, pulling]) is None


@pytest.mark.parametrize(
    "reason",
    [
        "DNSConfigForming",
        "MissingClusterDNS",
        "Unhealthy",
        "FailedScheduling",
        "FailedToRetrieveImagePullSecret",
    ],
)
def test_a_warning_about_something_a_pod_starts_without_is_ignored(reason: str):
    harmless = happening(reason, "Nameserver limits were exceeded", at="12:00:09")
    assert not_started([harmless]) is None
    sandbox = happening("FailedCreatePodSandBox", "no network plug-in", at="12:00:01")
    found = not_started([sandbox, harmless])
    assert found is not None and (found.reason, found.message) == (sandbox["reason"], sandbox["message"])


def test_without_events_there_is_no_start_problem():
    assert not_started([]) is None


def happening(reason: str, message: str, *, at: str = "12:00:00", kind: str = "Warning") -> dict[str, Any]:
    return {
        "type": kind,
        "reason": reason,
        "message": message,
        "lastTimestamp": f"2026-11-21T{at}Z",
        "metadata": {},
    }


SPEC = {
    "volumes": [
        {"name": "output", "persistentVolumeClaim": {"claimName": "results"}},
        {"name": "cache", "emptyDir": {}},
    ],
    "containers": [{"volumeMounts": [{"name": "output", "subPath": "copy-1a2b3c"}, {"name": "cache"}]}],
}


@pytest.mark.parametrize("failed", ["create subPath directory", "prepare subPath"])
def test_a_folder_that_cannot_be_made_on_a_claim_is_told_with_the_claim(failed: str):
    message = f'failed to {failed} for volumeMount "output" of container "trainer"'
    found = no_folder(message, SPEC)
    assert found is not None
    assert found.startswith("the folder copy-1a2b3c cannot be made on claim results: look whether the volume")
    assert found.endswith(f"({message})")


def test_a_folder_of_another_volume_is_told_by_the_name_of_the_volume():
    found = no_folder('failed to prepare subPath for volumeMount "cache" of container "trainer"', SPEC)
    assert found is not None and "cannot be made on volume cache" in found


def test_another_message_about_a_container_is_not_about_a_folder():
    assert no_folder('secret "tokens" not found', SPEC) is None

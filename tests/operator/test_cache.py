"""The cache: late and reordered states never win."""

from typing import Any

from grpo_operator.cluster.kinds import JOBS, PODS
from grpo_operator.observe.cache import Cache, job_key


def pod(
    name: str = "p", *, version: int = 10, uid: str = "u1", owner: str | None = "job-uid"
) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "name": name,
        "namespace": "default",
        "uid": uid,
        "resourceVersion": str(version),
    }
    if owner:
        job = {"apiVersion": "grpo.dev/v1alpha1", "kind": "GRPOJob", "name": "copy", "uid": owner}
        meta["ownerReferences"] = [job | {"controller": True}]
    return {"metadata": meta}


def names(cache: Cache) -> list[str]:
    return [item["metadata"]["name"] for item in cache.pods(("default", "job-uid"))]


def test_an_older_state_never_replaces_a_newer_one():
    cache = Cache()
    assert cache.put(PODS, pod(version=10))
    assert not cache.put(PODS, pod(version=9))
    assert not cache.put(PODS, pod(version=10))
    assert cache.put(PODS, pod(version=11))


def test_a_deleted_object_does_not_come_back_with_a_late_state():
    cache = Cache()
    cache.put(PODS, pod())
    cache.remove(PODS, pod(version=12))
    assert not cache.put(PODS, pod(version=11))
    assert names(cache) == []


def test_an_object_that_is_as_new_as_its_deletion_was_not_deleted():
    cache = Cache()
    cache.put(PODS, pod())
    cache.remove(PODS, pod(version=12))  # it lost the label that the watch selects
    assert cache.put(PODS, pod(version=12))
    assert names(cache) == ["p"]
    cache.remove(PODS, pod(version=15))
    assert not cache.put(PODS, pod(version=14))


def test_a_late_deletion_leaves_a_namesake_alone():
    cache = Cache()
    cache.put(PODS, pod(uid="u2", version=20))
    cache.remove(PODS, pod(uid="u1", version=12))
    assert names(cache) == ["p"]


def test_a_list_drops_what_vanished_but_not_what_was_created_since():
    cache = Cache()
    cache.put(PODS, pod("gone", version=10, uid="a"))
    cache.put(PODS, pod("new", version=30, uid="b"))
    listed = cache.keep(PODS, pod("listed", version=15, uid="c"))
    changed = cache.replace(PODS, [listed], namespace=None, listed_at=20)
    assert names(cache) == ["listed", "new"]
    assert changed == {("default", "copy")}


def test_a_list_says_what_was_there_at_its_own_moment():
    cache = Cache()
    cache.put(PODS, pod("gone", version=20, uid="a"))
    cache.put(PODS, pod("new", version=21, uid="b"))
    cache.replace(PODS, [], namespace=None, listed_at=20)
    assert names(cache) == ["new"]


def test_a_deleted_uid_is_taken_in_again_once_late_states_can_no_longer_arrive():
    cache = Cache()
    cache.remove(PODS, pod(version=12))
    cache.forget_deleted_uids()
    assert cache.put(PODS, pod(version=11))


def test_a_list_without_changes_wakes_no_job():
    cache = Cache()
    cache.put(PODS, pod())
    listed = cache.keep(PODS, pod())
    assert cache.replace(PODS, [listed], namespace="default", listed_at=20) == set()


def test_a_list_of_one_namespace_says_nothing_about_another():
    cache = Cache()
    cache.put(PODS, pod())
    cache.replace(PODS, [], namespace="other", listed_at=20)
    assert names(cache) == ["p"]


def test_children_belong_to_the_job_that_controls_them():
    assert job_key(PODS, pod()) == ("default", "copy")
    assert job_key(PODS, pod(owner=None)) is None
    assert job_key(JOBS, pod("a-job", owner=None)) == ("default", "a-job")


def test_of_a_listed_object_that_is_known_nothing_new_is_held():
    cache = Cache()
    cache.put(PODS, pod(version=10))
    known = cache.keep(PODS, pod(version=10))
    assert cache.keep(PODS, pod(version=10)) is known
    assert cache.keep(PODS, pod(version=9)) is known
    runs = {"spec": {"volumes": []}, "status": {"phase": "Running"}}
    newer = cache.keep(PODS, pod(version=11) | runs)
    assert (newer.version, "volumes" in newer.read()["spec"]) == (11, False)
    assert cache.replace(PODS, [newer], namespace=None, listed_at=20) == {("default", "copy")}
    assert cache.pods(("default", "job-uid")) == (newer.read(),)


def test_an_object_that_the_api_server_no_longer_has_does_not_come_back_but_a_namesake_stays():
    cache = Cache()
    cache.put(PODS, pod())
    cache.mark_gone(PODS, (pod()["metadata"]["namespace"], "p"), uid=pod()["metadata"]["uid"])
    assert not cache.put(PODS, pod(version=30))  # its last state, before the end of its deletion
    assert names(cache) == []
    cache.put(PODS, pod(uid="u2", version=31))
    cache.mark_gone(PODS, (pod()["metadata"]["namespace"], "p"), uid="u1")
    assert names(cache) == ["p"]

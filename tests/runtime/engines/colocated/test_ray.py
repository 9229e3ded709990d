"""Where engines continue Ray, who is let in, and with which settings. Without Ray itself: test_ray_job.py."""

import importlib.metadata
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from grpo_api.contract.exit_codes import ExitCode
from grpo_runtime.engines.colocated.ray.actor import become
from grpo_runtime.engines.colocated.ray.cluster import (
    RayLostError,
    RayMember,
    RayPod,
    own_address,
    require_ray,
)
from grpo_runtime.engines.colocated.ray.layout import (
    LOOPBACK,
    NodeOptions,
    RayShape,
    actor_gpus,
    bundles,
    node_resource,
    node_settings,
    ray_environment,
)
from grpo_runtime.engines.colocated.ray.node_folder import NodeFolder, ray_token, write_token
from grpo_runtime.engines.colocated.ray.rank_end import actor_of
from grpo_runtime.errors import UserError
from grpo_runtime.process.failure import describe_failure

ON_CPU = RayShape(num_pods=2, ranks_per_pod=2, has_gpus=False)
ON_GPUS = RayShape(num_pods=2, ranks_per_pod=4, has_gpus=True)
DEFAULT_SHARED_MEMORY = 2**30
"""Of a trainer pod without or with one GPU."""


def options(pod: int, *, shape: RayShape = ON_CPU) -> NodeOptions:
    head = None if pod == 0 else "10.0.0.1:4000"
    return NodeOptions(
        pod=pod, shape=shape, address=f"10.0.0.{pod + 1}", head=head, folder=Path("/cache/node")
    )


@pytest.mark.parametrize("shape", [ON_CPU, ON_GPUS])
def test_the_bundle_of_a_rank_lies_in_the_pod_of_that_rank(shape: RayShape) -> None:
    found = bundles(shape)
    assert len(found) == shape.num_pods * shape.ranks_per_pod
    for rank, bundle in enumerate(found):
        [own] = [name for name in bundle if name not in ("CPU", "GPU")]
        assert own == node_resource(rank // shape.ranks_per_pod)


@pytest.mark.parametrize("shape", [ON_CPU, ON_GPUS])
def test_every_bundle_has_room_on_the_node_of_its_pod(shape: RayShape) -> None:
    for pod in range(shape.num_pods):
        settings = node_settings(options(pod, shape=shape))
        there = {**settings["resources"], "CPU": settings["num_cpus"], "GPU": settings["num_gpus"]}
        asked = [bundle for bundle in bundles(shape) if node_resource(pod) in bundle]
        for name in asked[0]:
            assert 0 < sum(bundle[name] for bundle in asked) <= there[name]


def test_an_engine_has_a_fraction_of_the_gpu_of_its_bundle_and_leaves_the_rank_the_rest() -> None:
    assert 0 < actor_gpus(ON_GPUS) < bundles(ON_GPUS)[0]["GPU"] == 1
    assert actor_gpus(ON_CPU) == 0
    assert "GPU" not in bundles(ON_CPU)[0]


def test_only_the_first_pod_has_a_head_and_none_has_a_dashboard() -> None:
    first, second = node_settings(options(0)), node_settings(options(1))
    assert (first["gcs_server_port"], first["include_dashboard"]) == (0, False)
    assert "gcs_address" not in first
    assert second["gcs_address"] == "10.0.0.1:4000"
    assert "include_dashboard" not in second


def test_the_object_store_leaves_most_of_the_shared_memory_to_the_weights() -> None:
    # Ray refuses less
    assert 75 * 2**20 <= node_settings(options(0))["object_store_memory"] < DEFAULT_SHARED_MEMORY / 10


def test_what_a_user_has_set_for_another_cluster_does_not_count() -> None:
    given = {
        "RAY_ADDRESS": "10.9.9.9:6379",
        "RAY_AUTH_TOKEN": "theirs",
        "RAY_AUTH_MODE": "disabled",
        "A": "b",
    }
    made = ray_environment(given, folder=Path("/cache/node"), address="10.0.0.1")
    assert (made["RAY_AUTH_MODE"], made["RAY_AUTH_TOKEN_PATH"], made["A"]) == (
        "token",
        "/cache/node/token",
        "b",
    )
    assert "RAY_ADDRESS" not in made and "RAY_AUTH_TOKEN" not in made


def test_ray_stays_on_the_loopback_address_where_all_pods_are_on_one_machine() -> None:
    assert own_address("localhost") == own_address("127.0.0.1") == LOOPBACK
    local = ray_environment({}, folder=Path("/cache/node"), address=LOOPBACK)
    # what Ray reads, also where it runs in the pods of a cluster
    assert local["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    apart = ray_environment({}, folder=Path("/cache/node"), address="10.0.0.1")
    assert apart["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "1"


def test_a_first_pod_with_an_address_of_ipv6_only_is_found() -> None:
    assert own_address("::1") == LOOPBACK


def test_a_first_pod_that_is_not_found_ends_the_attempt_with_its_name() -> None:
    with pytest.raises(RayLostError, match=r"first trainer pod, nowhere\.invalid"):
        own_address("nowhere.invalid")


def test_what_a_rank_knows_of_ray_does_not_show_the_token() -> None:
    member = RayMember(shape=ON_CPU, run_dir=Path("/run"), master_addr="localhost", token="secret")
    assert "secret" not in repr(member)


def test_a_folder_is_removed_when_its_owner_is_gone_and_not_before(tmp_path: Path) -> None:
    left = tmp_path / "grpo-ray-left"
    left.mkdir(mode=0o700)
    (left / "token").write_text("secret")
    (tmp_path / "other").mkdir()
    first = NodeFolder(tmp_path)
    assert not left.exists()
    second = NodeFolder(tmp_path)
    assert first.path.exists() and second.path.exists()
    assert stat.S_IMODE(first.path.stat().st_mode) == 0o700
    first.remove()
    second.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


TAKES_ITS_MESSAGE = "import os, sys; os.read(int(sys.argv[1]), 4)"


@pytest.mark.parametrize(("code", "head"), [(TAKES_ITS_MESSAGE, None), ("pass", "x" * 2**20)])
def test_a_pods_process_that_ends_at_once_is_a_lost_ray_and_its_logs_are_quoted(
    code: str, head: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logs = tmp_path / "ray" / "session_latest" / "logs"
    logs.mkdir(parents=True)
    (logs / "raylet.out").write_text("".join(f"line {number}\n" for number in range(100)))
    here = NodeOptions(pod=0, shape=ON_CPU, address=LOOPBACK, head=head, folder=tmp_path)
    before = set(threading.enumerate())
    with caplog.at_level("ERROR"), pytest.raises(RayLostError, match="ended in this pod while it started"):
        pod = RayPod(here, environment={}, command=(sys.executable, "-c", code))
        try:
            pod.wait_for_node()
        finally:
            pod.close()
    assert "line 99" in caplog.text and "line 50" not in caplog.text
    # those of earlier tests may end at any time
    assert set(threading.enumerate()) <= before


def test_an_actor_changes_only_what_differs_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", Watched({"SAME": "1", "OTHER": "1", "GONE": "1", "RAY_OWN": "1"}))
    become({"SAME": "1", "OTHER": "2", "NEW": "3", "RAY_OWN": "2"})
    assert dict(os.environ) == {"SAME": "1", "OTHER": "2", "NEW": "3", "RAY_OWN": "1"}
    assert os.environ.changed == {"OTHER", "GONE", "NEW"}  # type: ignore[attr-defined]


class Watched(dict[str, str]):
    """An environment that says which of its variables were changed."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        super().__init__(variables)
        self.changed: set[str] = set()

    def __setitem__(self, name: str, value: str) -> None:
        self.changed.add(name)
        super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        self.changed.add(name)
        super().__delitem__(name)


def test_an_actor_imports_no_torch_before_it_has_the_environment_that_torch_reads() -> None:
    code = "import sys, grpo_runtime.engines.colocated.ray.actor; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_each_attempt_has_a_token_that_tells_nothing_of_the_jobs_own() -> None:
    tokens = {ray_token(admin, attempt=attempt) for admin in ("one", "other") for attempt in (1, 2)}
    assert len(tokens) == 4
    assert all(len(token) == 64 and "one" not in token for token in tokens)
    assert ray_token("one", attempt=1) == ray_token("one", attempt=1)


def test_only_this_user_can_read_the_token(tmp_path: Path) -> None:
    write_token(tmp_path / "token", "secret")
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        write_token(tmp_path / "token", "another")


def version_of(packages: Mapping[str, str], name: str) -> str:
    if name not in packages:
        raise importlib.metadata.PackageNotFoundError(name)
    return packages[name]


@pytest.mark.parametrize(
    ("packages", "says"),
    [
        ({}, "this image has no package ray"),
        (
            {"ray": "2.51.2"},
            "ray 2.51.2 in this image has no authentication by a token: install 2.52 or later",
        ),
        ({"ray": "1.99.0"}, "has no authentication"),
    ],
)
def test_an_image_without_a_ray_that_can_be_guarded_is_the_users_error(
    packages: dict[str, str], says: str
) -> None:
    with pytest.raises(UserError, match=says) as caught:
        require_ray(find_version=lambda name: version_of(packages, name))
    assert "set colocated.executor to Processes" in str(caught.value)


@pytest.mark.parametrize("version", ["2.52.0", "2.60.0", "3.0.0rc1"])
def test_a_later_ray_is_taken(version: str) -> None:
    require_ray(find_version=lambda name: version_of({"ray": version}, name))


def test_the_image_has_one() -> None:
    require_ray()


def test_an_engine_that_is_asked_for_when_ray_is_gone_ends_the_attempt_and_not_the_job(
    tmp_path: Path,
) -> None:
    with pytest.raises(RayLostError, match="Ray has ended in this pod") as caught:
        actor_of(0, folder=tmp_path, environment={})()
    assert describe_failure(caught.value).exit_code == ExitCode.TRANSIENT
    assert list(tmp_path.iterdir()) == []

"""Every cause, in one sentence: it is in status.lastFailure and in a condition within 60 s.

docs/causes.md is the table of what is shown here.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.v1alpha1.spec import GRPOJobSpec
from grpo_operator.children.run import Run
from grpo_operator.children.shared import RUN_CONFIG_KEY
from grpo_operator.children.shared import config_map as config_map_of
from grpo_scenarios.causes import (
    BROKEN_CLAIM,
    HUGE_CLAIM,
    PRESENT,
    QUOTA_GPUS,
    SMALL_CLAIM,
    TRAINER_ONLY,
    WITH_ENGINE,
    WITHOUT_PROCESSES,
    Cause,
)
from grpo_scenarios.telling import TOLD_WITHIN_SECONDS, Told, print_row, tell
from grpo_scenarios.trouble import claim_of, config_map, quota, sidecar_injector, small_volume, volume
from grpo_scenarios.world import World

pytestmark = pytest.mark.cluster

EMPTY_WORDS = {"", "Error", "Unknown", "UnexpectedError"}


@pytest.fixture(scope="module")
def told(
    world: World, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[dict[str, Told]]:
    """What the jobs of the selected tests said. Those without processes go first, all at once."""
    selected = {item.callspec.params["cause"].slug for item in request.session.items if _is_ours(item)}
    folder = tmp_path_factory.mktemp("webhook")
    with ExitStack() as stack:
        world.apply(
            quota(gpus=QUOTA_GPUS),
            claim_of(HUGE_CLAIM, storage="900Ti"),
            *(config_map(name, data) for name, data in PRESENT.items()),
        )
        stack.enter_context(volume(world, BROKEN_CLAIM, path=Path("/nowhere/at/all")))
        stack.enter_context(small_volume(world, SMALL_CLAIM, size="600k"))
        stack.enter_context(sidecar_injector(world, "pod-security", folder=folder))
        seen = tell(
            world, [c for c in WITHOUT_PROCESSES if c.slug in selected], at_once=len(WITHOUT_PROCESSES)
        )
        seen |= tell(world, [c for c in TRAINER_ONLY if c.slug in selected], at_once=2)
        seen |= tell(world, [c for c in WITH_ENGINE if c.slug in selected], at_once=2)
        yield seen


def _is_ours(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and "told" in item.fixturenames


@pytest.mark.parametrize(
    "cause", (*WITHOUT_PROCESSES, *TRAINER_ONLY, *WITH_ENGINE), ids=lambda cause: cause.slug
)
def test_the_cause_is_told_within_a_minute(cause: Cause, told: dict[str, Told]) -> None:
    seen = told[cause.slug]
    assert seen.is_in_failure, seen.failure
    assert seen.is_in_condition, seen.status.get("conditions")
    assert seen.seconds is not None and seen.seconds <= TOLD_WITHIN_SECONDS
    assert seen.failure["reason"] not in EMPTY_WORDS
    has_ended = seen.status["phase"] == "Failed"
    assert has_ended == cause.is_end, seen.status["phase"]


def test_a_configuration_of_another_release_ends_the_job_with_both_versions(world: World) -> None:
    """An operator of another release wrote the RunConfig, and this one took over."""
    cause = Cause(
        "other-release",
        {},
        "UserError",
        ("RunConfig has schemaVersion 99 but this side speaks 1", "use an operator and a runtime image"),
        condition="Failed",
    )
    world.scale_operator(0)
    world.apply(cause.job)
    job = world.job(cause.slug)
    run = Run.begin(
        namespace=world.namespace,
        job=cause.slug,
        uid=job["metadata"]["uid"],
        spec=GRPOJobSpec.from_object(job["spec"]),
        image=world.target.runtime_image,
    )
    written = config_map_of(run).manifest
    written["data"][RUN_CONFIG_KEY] = json.dumps(run.config.to_object() | {"schemaVersion": 99})
    world.apply(written)
    world.scale_operator(1)
    started = datetime.now(UTC)
    seen = Told(cause, started)

    def is_told() -> bool:
        seen.status = world.status(cause.slug)
        return seen.is_told

    world.wait_until(is_told, "the cause", timeout_seconds=TOLD_WITHIN_SECONDS)
    seen.seconds = seen.after_apply = (datetime.now(UTC) - started).total_seconds()
    print_row(seen)
    assert seen.seconds <= TOLD_WITHIN_SECONDS
    assert seen.failure["exitCode"] == ExitCode.USER_ERROR
    world.kubectl("delete", "grpojob", cause.slug, "--wait=false")

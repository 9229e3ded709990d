"""Problems of a GRPOJob, found without an API server."""

from typing import Any

import pytest
from pydantic import ValidationError

from grpo_api.problems import Problem, problems, problems_of
from grpo_api.v1alpha1.job import parse_job
from grpo_api.v1alpha1.spec import GRPOJobSpec


def job(**spec: Any) -> dict[str, Any]:
    base = {
        "model": {"source": "builtin://tiny"},
        "dataset": {"source": "builtin://copy"},
        "rewards": [{"name": "copy", "builtin": "exact_match"}],
        "algorithm": {"steps": 1},
    }
    return {
        "apiVersion": "grpo.dev/v1alpha1",
        "kind": "GRPOJob",
        "metadata": {"name": "copy"},
        "spec": base | spec,
    }


def test_every_problem_of_one_kind_is_listed():
    found = problems(job() | {"spec": {}})
    fields = ["spec.model", "spec.algorithm"]
    assert found == [Problem(field, "Required value") for field in fields]


def test_problems_of_a_part_that_was_parsed_alone_have_their_full_path():
    with pytest.raises(ValidationError) as caught:
        GRPOJobSpec.from_object(job(algorithm={"steps": 0})["spec"])
    assert [str(problem) for problem in problems_of(caught.value, at="spec")] == [
        "spec.algorithm.steps: Invalid value: 0: "
        "spec.algorithm.steps in body should be greater than or equal to 1"
    ]


def test_an_invalid_item_of_a_list_does_not_also_count_as_missing():
    broken = job(rewards=[{"name": "UPPER", "builtin": "exact_match"}])
    assert [problem.field for problem in problems(broken)] == ["spec.rewards[0].name"]


@pytest.mark.parametrize("something", [None, [], "text", 5, {}])
def test_what_is_no_job_at_all_is_a_problem_and_raises_nothing(something: object):
    assert problems(something)


def test_a_broken_rule_is_also_readable_as_a_plain_error():
    with pytest.raises(ValidationError, match="rewards must not all have weight 0"):
        parse_job(job(rewards=[{"name": "copy", "builtin": "exact_match", "weight": 0}]))


GPU = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
PODS_WITH_GPUS = {"trainer": GPU, "rollout": GPU}


@pytest.mark.parametrize(
    ("weight_sync", "spec", "sentence"),
    [
        ({"backend": "VllmNative"}, PODS_WITH_GPUS, None),
        ({"backend": "VllmNative", "vllmEngine": "nccl"}, PODS_WITH_GPUS, None),
        ({"backend": "VllmNative", "vllmEngine": "mine"}, {"rollout": {"replicas": 1}}, None),
        ({"backend": "nccl"}, PODS_WITH_GPUS, "set weightSync.backend VllmNative and name the engine"),
        ({"backend": "ipc"}, PODS_WITH_GPUS, "set weightSync.backend VllmNative and name the engine"),
        ({"backend": "VllmNative", "vllmEngine": "ipc"}, PODS_WITH_GPUS, "ipc sends pickles over HTTP"),
        ({"backend": "VllmNative", "vllmEngine": "sharded_rdt"}, PODS_WITH_GPUS, "needs actors of Ray"),
        ({"backend": "VllmNative", "vllmEngine": "nccl_m2n"}, PODS_WITH_GPUS, "do not send all weights"),
        ({"backend": "Gloo", "vllmEngine": "mine"}, PODS_WITH_GPUS, "is for weightSync.backend VllmNative"),
        (
            {"backend": "vllm_native"},
            PODS_WITH_GPUS,
            "must be one of Auto, InProcess, Gloo, NCCL, VllmNative",
        ),
        ({"backend": "VllmNative"}, {"trainer": GPU}, "add rollout"),
        ({"backend": "VllmNative"}, {"trainer": GPU, "rollout": {"replicas": 1}}, "set nvidia.com/gpu in"),
        ({"backend": "VllmNative"}, {"rollout": GPU}, "set nvidia.com/gpu in"),
    ],
)
def test_of_vllms_own_transfer_engines_only_nccl_can_be_named_and_that_between_gpus(
    weight_sync: dict[str, Any], spec: dict[str, Any], sentence: str | None
):
    found = problems(job(weightSync=weight_sync, **spec))
    field = "vllmEngine" if "vllmEngine" in weight_sync else "backend"
    assert [problem.field for problem in found] == [f"spec.weightSync.{field}"] * (sentence is not None)
    assert all(sentence in problem.message for problem in found)

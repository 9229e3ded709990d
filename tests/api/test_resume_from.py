"""`resumeFrom` in a spec and in what pods mount for it."""

from typing import Any

import pytest

from grpo_api.problems import problems
from grpo_api.resolve import resolve, resumed_volumes_of, volumes_of
from grpo_api.source import Volume, VolumeKind
from grpo_api.v1alpha1.job import parse_job
from grpo_api.v1alpha1.spec import ResumeLoad


def job(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "grpo.dev/v1alpha1",
        "kind": "GRPOJob",
        "metadata": {"name": "next", "namespace": "team"},
        "spec": {
            "model": {"source": "builtin://tiny"},
            "dataset": {"source": "builtin://copy"},
            "rewards": [{"name": "copy", "builtin": "char_accuracy"}],
            "algorithm": {"steps": 10},
            **spec,
        },
    }


def mounted(source: str, **spec: Any) -> tuple[Volume, ...]:
    run = resolve(parse_job(job(resumeFrom={"source": source}, **spec)))
    return resumed_volumes_of(run)


def test_a_claim_is_a_volume_of_its_own_unless_a_source_is_on_it_too() -> None:
    runs = Volume(VolumeKind.CLAIM, "runs")
    assert mounted("pvc://runs/first") == mounted("pvc://runs") == (runs,)
    model = {"source": "pvc://runs/model"}
    assert mounted("pvc://runs/first", model=model) == ()
    assert volumes_of(resolve(parse_job(job(model=model)))) == (runs,)
    assert mounted("file:///runs/first") == ()
    assert resumed_volumes_of(resolve(parse_job(job()))) == ()


def test_a_checkpoint_is_meant_without_load() -> None:
    run = resolve(parse_job(job(resumeFrom={"source": "pvc://runs/first"})))
    assert run.resume_from is not None
    assert run.resume_from.load is ResumeLoad.CHECKPOINT
    assert run.to_object()["resumeFrom"] == {"source": "pvc://runs/first", "load": "Checkpoint"}
    assert "resumeFrom" not in resolve(parse_job(job())).to_object()


def test_the_place_of_a_job_takes_the_place_of_its_name() -> None:
    resume = parse_job(job(resumeFrom={"job": "first", "load": "Weights", "step": 7})).spec.resume_from
    assert resume is not None
    assert resume.with_source("pvc://runs/first-1").to_object() == {
        "source": "pvc://runs/first-1",
        "load": "Weights",
        "step": 7,
    }


@pytest.mark.parametrize(
    ("resume", "says"),
    [
        ({}, "resumeFrom needs exactly one of job and source"),
        ({"job": "first", "source": "pvc://runs/first"}, "resumeFrom needs exactly one of job and source"),
        ({"job": "next"}, "resumeFrom.job names the job itself"),
        ({"source": "pvc://runs/../x"}, "has . or .. as a part of its path"),
        ({"source": "runs/first"}, "has no scheme: write pvc://CLAIM/PATH"),
        ({"source": "s3://bucket/first"}, "is not a directory of checkpoints"),
    ],
)
def test_a_wrong_place_is_refused_with_the_fix(resume: dict[str, str], says: str) -> None:
    (found,) = problems(job(resumeFrom=resume))
    assert found.field.startswith("spec.resumeFrom") and says in found.message

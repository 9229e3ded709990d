"""Where the job that a local job resumes from has its output."""

from urllib.parse import quote

from grpo_api.v1alpha1.job import GRPOJob
from grpo_runtime.errors import UserError
from grpo_runtime.local.workspace import Workspace


def with_place_of_resumed(job: GRPOJob, workspace: Workspace) -> GRPOJob:
    """The job with the output directory of `resumeFrom.job` in its place: the one of that name beside its
    own, or where it was when this job began.

    Raises UserError when this job has not begun and that directory is missing, or another command writes to
    it.
    """
    resume = job.spec.resume_from
    if resume is None or resume.job is None:
        return job
    place = _place_of_run(workspace, resume.job) or _place_beside(workspace, resume.job)
    found = resume.found_at(place)
    return job.model_copy(update={"spec": job.spec.model_copy(update={"resume_from": found})})


def _place_of_run(workspace: Workspace, name: str) -> str | None:
    """Where the output of that job was when the run in the workspace began; None where none has begun, or one
    with another job, which is refused as any other change."""
    known = workspace.begun_config()
    place = known.resume_from.source if known and known.resume_from else None
    return place if place and place.endswith(f"/{name}") else None


def _place_beside(workspace: Workspace, name: str) -> str:
    other = Workspace(workspace.output.parent / name)
    if not other.output.is_dir():
        raise UserError(
            f"resumeFrom.job: there is no output of {name} at {other.output}: run that job first, or name "
            "its output directory in resumeFrom.source as file:///PATH"
        )
    if other.is_in_use():
        raise UserError(f"resumeFrom.job: {name} still runs in {other.output}: wait for its end")
    return f"file://{quote(str(other.output))}"

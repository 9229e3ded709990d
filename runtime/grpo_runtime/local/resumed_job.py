"""Where the job that a local job resumes from has its output."""

from urllib.parse import quote

from grpo_api.v1alpha1.job import GRPOJob
from grpo_runtime.errors import UserError
from grpo_runtime.local.workspace import Workspace


def with_place_of_resumed(job: GRPOJob, workspace: Workspace) -> GRPOJob:
    """The job with the output directory of `resumeFrom.job` in its place: the one of that name beside its
    own.

    Raises UserError when this job has not begun and that directory is missing, or another command writes to
    it.
    """
    resume = job.spec.resume_from
    if resume is None or resume.job is None:
        return job
    other = Workspace(workspace.output.parent / resume.job)
    if not workspace.run_config.exists():
        if not other.output.is_dir():
            raise UserError(
                f"resumeFrom.job: there is no output of {resume.job} at {other.output}: run that job first, "
                "or name its output directory in resumeFrom.source as file:///PATH"
            )
        if other.is_in_use():
            raise UserError(f"resumeFrom.job: {resume.job} still runs in {other.output}: wait for its end")
    found = resume.found_at(f"file://{quote(str(other.output))}")
    return job.model_copy(update={"spec": job.spec.model_copy(update={"resume_from": found})})

"""`grpo-runtime validate`: what is wrong with GRPOJobs, or what they would do. torch is loaded for jobs with
GPUs only, whose memory is planned."""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from grpo_api.problems import Problem, problems
from grpo_api.resolve import resolve, volumes_of
from grpo_api.source import Scheme, parse_source
from grpo_api.v1alpha1.job import KIND, GRPOJob, parse_job
from grpo_api.v1alpha1.spec import GRPOJobSpec
from grpo_runtime.errors import HubUnreachableError, UserError
from grpo_runtime.local.describe import count, describe, gpus_asked
from grpo_runtime.local.documents import Document, read_documents
from grpo_runtime.local.memory import describe_memory
from grpo_runtime.local.volume_folders import lay_out_volumes, parse_volume_flags
from grpo_runtime.spec_checks import spec_problems


def validate(
    paths: Sequence[Path], *, gpu_gib: float | None = None, volumes: Sequence[str] | None = None
) -> int:
    """Print what is wrong with each GRPOJob in the files, or what it would do.

    With `gpu_gib`, the memory of each GPU, a job that does not fit is wrong, too. With `volumes`, as in
    `--volume`, data, tokenizer and reward functions are looked at. Returns 0 when each file has a GRPOJob and
    nothing is wrong, else 1.
    """
    num_jobs, num_wrong = 0, 0
    for path in paths:
        try:
            documents = read_documents(path)
        except UserError as error:
            print(error)
            num_wrong += 1
            continue
        jobs = [document for document in documents if document.kind == KIND]
        num_jobs += len(jobs)
        for job in jobs:
            is_valid = _is_valid(job, gpu_gib=gpu_gib)
            if is_valid and volumes is not None:
                is_valid = _has_good_data(job, documents=documents, volumes=volumes)
            num_wrong += not is_valid
        others = sorted({document.kind or "without a kind" for document in documents} - {KIND})
        if others:
            print(f"{path}: not looked at: {', '.join(others)}")
        if not jobs:
            print(f"{path}: there is no object of kind {KIND} in it")
            num_wrong += 1
    if len(paths) > 1 or num_jobs > 1:
        print(f"{count(num_jobs, 'job')}, {num_wrong} with problems")
    return 1 if num_wrong else 0


def _is_valid(document: Document, *, gpu_gib: float | None) -> bool:
    where = f"{document.path}:{document.line}: GRPOJob {document.name or '(no name)'}"
    found = problems(document.data) or list(_problems_beyond_the_api(parse_job(document.data)))
    if found:
        print(f"{where}: {count(len(found), 'problem')}")
        for problem in found:
            print(f"  {problem}")
        return False
    print(f"{where}: valid")
    job = parse_job(document.data)
    print(describe(job))
    if _tasks(job.spec) and not _can_ask_for_tasks():
        print("  not looked at: the task, because grpo-runtime[reasoning-gym] is not installed here")
    if not any(gpus_asked(job)):
        return True
    text, fits = describe_memory(job, gpu_gib=gpu_gib)
    print(text)
    return fits


def _has_good_data(document: Document, *, documents: Sequence[Document], volumes: Sequence[str]) -> bool:
    from grpo_runtime.trainer.data_check import check_data

    job = parse_job(document.data)
    run_config, engine_section = resolve(job), job.spec.rollout or job.spec.trainer
    with TemporaryDirectory() as folder:
        volumes_dir = Path(folder) / "volumes"
        try:
            given = parse_volume_flags(volumes)
            lay_out_volumes(volumes_of(run_config), given=given, documents=documents, into=volumes_dir)
            num_prompts = check_data(
                run_config,
                volumes_dir=volumes_dir,
                cache_dir=Path(folder),
                has_cpu_engines=not engine_section.has_gpus,
                tell=lambda sentence: print(f"  {sentence}"),
            )
        except (UserError, HubUnreachableError) as error:
            print(f"  data: {error}")
            return False
    played = "; a group of each environment was played" if run_config.environments else ""
    print(
        f"  data: {count(num_prompts, 'prompt')} for training; the reward functions were called once{played}"
    )
    return True


def _problems_beyond_the_api(job: GRPOJob) -> Iterator[Problem]:
    """Problems that only Python and its libraries can find."""
    spec = job.spec
    yield from spec_problems(rewards=spec.resolved_rewards, sampling=spec.sampling)
    tasks = _tasks(spec)
    if not tasks or not _can_ask_for_tasks():
        return
    from grpo_runtime.data.reasoning_gym import require_task

    for field, source in tasks.items():
        try:
            require_task(source, seed=spec.algorithm.seed)
        except UserError as error:
            where = "" if field == "dataset.source" else "dataset.eval: "
            yield Problem(f"spec.{field}", f'Invalid value: "string": {where}{error}')


def _tasks(spec: GRPOJobSpec) -> dict[str, str]:
    """The sources whose prompts are made by reasoning-gym, by their fields."""
    dataset = spec.resolved_dataset
    evaluated = dataset.of_evaluation
    sources = {"dataset.source": dataset.source}
    if evaluated is not None:
        sources["dataset.eval.source"] = evaluated.source
    return {
        field: source
        for field, source in sources.items()
        if parse_source(source).scheme is Scheme.REASONING_GYM
    }


def _can_ask_for_tasks() -> bool:
    """Whether reasoning-gym is installed here."""
    return find_spec("reasoning_gym") is not None

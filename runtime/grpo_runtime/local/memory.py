"""What `grpo-runtime validate` says about the memory of a job's GPUs and pods."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from grpo_api.resolve import resolve
from grpo_api.source import Scheme, parse_source
from grpo_api.v1alpha1.job import GRPOJob
from grpo_runtime.errors import HubUnreachableError, UserError, VolumeFullError
from grpo_runtime.storage.paths import path_of, whereabouts

_NO_VOLUMES = Path("/nonexistent")


def describe_memory(job: GRPOJob, *, gpu_gib: float | None) -> tuple[str, bool]:
    """The table of a job with GPUs, and whether it fits: into the memory that it sets as the limit of pods,
    and into GPUs of `gpu_gib` GiB where that is given.

    Only the model's configuration is read. When it cannot be, the text says so and nothing is refused.
    """
    # after here torch is loaded, which takes seconds
    from transformers.utils.logging import disable_progress_bar

    from grpo_runtime.memory_plan.gpu_plan import GpuPlan, plan_memory
    from grpo_runtime.memory_plan.host_plan import HostPlan, plan_hosts
    from grpo_runtime.memory_plan.model_sizes import sizes_of_folder
    from grpo_runtime.memory_plan.parts import GIB, in_gib

    def on_gpu(plan: GpuPlan) -> str:
        what = f"each GPU of role {plan.role}"
        return what if gpu_gib is None else f"{what}, {_fit(plan.fixes, into=f'{gpu_gib:g} GiB')}"

    def on_host(plan: HostPlan) -> str:
        what = "the first trainer pod" if plan.role == "trainer" else f"each {plan.role} pod"
        if plan.limit_bytes is None:
            return f"{what}, which has no memory in {plan.role}.resources.limits"
        return f"{what}, {_fit(plan.fixes, into=f'its limit of {in_gib(plan.limit_bytes)}')}"

    disable_progress_bar()
    try:
        with tempfile.TemporaryDirectory() as folder:
            config = _config_folder(job, into=Path(folder))
            run = resolve(job)
            model = sizes_of_folder(config, attention=run.model.attention, lora=run.model.lora)
    except (UserError, HubUnreachableError, VolumeFullError, ConnectionError) as error:
        return f"  memory       not planned: {error}", True
    gpu_bytes = None if gpu_gib is None else int(gpu_gib * GIB)
    gpus, hosts = plan_memory(job, model, gpu_bytes=gpu_bytes), plan_hosts(job, model)
    adapter = f" with an adapter of {model.num_adapter_parameters / 1e6:.1f} M" if model.has_adapter else ""
    lines = [f"  memory       of a model of {model.num_parameters / 1e9:.2f} B parameters{adapter}, at most:"]
    plans: list[tuple[GpuPlan | HostPlan, str]] = [(plan, on_gpu(plan)) for plan in gpus]
    plans += [(plan, on_host(plan)) for plan in hosts]
    for plan, text in plans:
        lines.append(f"    {in_gib(plan.num_bytes):>10} {text}")
        lines += [f"      {in_gib(part.num_bytes):>10} {part.name}" for part in plan.parts]
    lines += [_about_staging(in_gib(plan.staging_bytes)) for plan in hosts if plan.lacks_staging]
    return "\n".join(lines), not any(plan.fixes for plan, _ in plans)


def _fit(fixes: Sequence[str], *, into: str) -> str:
    return f"which does not fit into {into}: {'; or '.join(fixes)}" if fixes else f"which fits into {into}"


def _about_staging(needed: str) -> str:
    return (
        f"    With {needed} more, rollout pods keep new weights aside until they are checked. Without it\n"
        "    weights go into the model while they arrive, and an engine whose transfer breaks starts again."
    )


def _config_folder(job: GRPOJob, *, into: Path) -> Path:
    """A folder with the model's `config.json`."""
    spec = job.spec.model
    source = parse_source(spec.source)
    if source.scheme is Scheme.BUILTIN:
        from grpo_runtime.model.tiny import write_tiny_model

        write_tiny_model(into)
        return into
    if source.scheme is Scheme.HUB:
        from grpo_runtime.storage.hub import download

        return download(
            "model",
            source.name,
            revision=spec.revision,
            hub=job.spec.hub,
            allow=("config.json",),
            retry_seconds=(),
        ).folder
    if source.scheme is not Scheme.FILE:
        raise UserError(
            f"model.source ({spec.source}) is on a volume of the cluster; name a copy of it on this machine "
            "as file:///PATH to plan its memory"
        )
    folder = path_of(source, volumes_dir=_NO_VOLUMES, field="model.source")
    if not (folder / "config.json").is_file():
        raise UserError(
            f"model.source ({spec.source}): there is no {whereabouts(source, folder)}/config.json"
        )
    return folder

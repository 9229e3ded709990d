"""What `grpo-runtime validate` says about the memory of a job's GPUs."""

import tempfile
from pathlib import Path

from grpo_api.resolve import resolve
from grpo_api.source import Scheme, parse_source
from grpo_api.v1alpha1.job import GRPOJob
from grpo_runtime.errors import HubUnreachableError, UserError, VolumeFullError
from grpo_runtime.storage.source_paths import path_of, whereabouts

_NO_VOLUMES = Path("/nonexistent")


def describe_memory(job: GRPOJob, *, gpu_gib: float | None) -> tuple[str, bool]:
    """The table of a job with GPUs, and whether it fits into GPUs of `gpu_gib` GiB; without that it does.

    Only the model's configuration is read. When it cannot be, the text says so and nothing is refused.
    """
    # after here torch is loaded, which takes seconds
    from transformers.utils.logging import disable_progress_bar

    from grpo_runtime.memory_plan.model_sizes import sizes_of_folder
    from grpo_runtime.memory_plan.plan import GIB, GpuPlan, in_gib, plan_memory

    def fit(plan: GpuPlan) -> str:
        if gpu_gib is None:
            return ""
        if not plan.fixes:
            return f", which fits into {gpu_gib:g} GiB"
        return f", which does not fit into {gpu_gib:g} GiB: {'; or '.join(plan.fixes)}"

    disable_progress_bar()
    try:
        with tempfile.TemporaryDirectory() as folder:
            config = _config_folder(job, into=Path(folder))
            run = resolve(job)
            model = sizes_of_folder(config, attention=run.chosen_attention, lora=run.model.lora)
    except (UserError, HubUnreachableError, VolumeFullError, ConnectionError) as error:
        return f"  memory       not planned: {error}", True
    gpu_bytes = None if gpu_gib is None else int(gpu_gib * GIB)
    plans = plan_memory(job, model, gpu_bytes=gpu_bytes)
    adapter = f" with an adapter of {model.num_adapter_parameters / 1e6:.1f} M" if model.has_adapter else ""
    lines = [f"  memory       of a model of {model.num_parameters / 1e9:.2f} B parameters{adapter}, at most:"]
    for plan in plans:
        lines.append(f"    {in_gib(plan.num_bytes):>10} each GPU of role {plan.role}{fit(plan)}")
        lines += [f"      {in_gib(part.num_bytes):>10} {part.name}" for part in plan.parts]
    return "\n".join(lines), not any(plan.fixes for plan in plans)


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

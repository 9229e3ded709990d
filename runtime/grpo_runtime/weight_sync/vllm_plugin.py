"""What vLLM calls in each of its processes: adds our backends, and lets no engine outlive its server."""


def register() -> None:
    """Register every backend with vLLM's factory, once; the engine class is imported when it is used.

    A name that vLLM or another plugin has taken is an error: weights must not take an unknown way.
    """
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    from grpo_runtime.parent_death import die_with_parent
    from grpo_runtime.weight_sync.registry import BACKENDS

    die_with_parent()

    for name in BACKENDS:
        loader = WeightTransferEngineFactory._registry.get(name)
        if loader is not None and loader().__module__ == "grpo_runtime.weight_sync.vllm_engine":
            continue
        WeightTransferEngineFactory.register_engine(
            name, "grpo_runtime.weight_sync.vllm_engine", "StagedWeightTransferEngine"
        )

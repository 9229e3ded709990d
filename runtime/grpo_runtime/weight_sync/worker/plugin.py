"""What vLLM calls in each of its processes: adds our backends, and ends an engine with its server."""

_MODULE = "grpo_runtime.weight_sync.worker.transfer_engine"


def register() -> None:
    """Register every backend with vLLM's factory, once; the engine class is imported when it is used.

    Raises ValueError when vLLM or another plugin has taken a name: weights must not take an unknown way.
    """
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    from grpo_runtime.process.parent_death import die_with_parent
    from grpo_runtime.weight_sync.engine_names import name_in_vllm
    from grpo_runtime.weight_sync.registry import all_backends

    die_with_parent()

    for name in map(name_in_vllm, all_backends()):
        loader = WeightTransferEngineFactory._registry.get(name)
        if loader is not None and loader().__module__ == _MODULE:
            continue
        WeightTransferEngineFactory.register_engine(name, _MODULE, "StagedWeightTransferEngine")

"""What vLLM calls in each of its processes: adds our backends, keeps out of the log what vLLM says in every
step, and ends an engine with its server."""

import logging

_MODULE = "grpo_runtime.weight_sync.worker.transfer_engine"

_LOGGERS_OF_EVERY_STEP = ("vllm.v1.core.sched.scheduler", "vllm.v1.core.block_pool")
"""They say at level INFO in every weight sync that the engine pauses, forgets cached prefixes and resumes."""


def register() -> None:
    """Register every backend with vLLM's factory, once; the engine class is imported when it is used.

    Raises ValueError when vLLM or another plugin has taken a name: weights must not take an unknown way.
    """
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    from grpo_runtime.process.lifetime import die_with_parent
    from grpo_runtime.weight_sync.engine_names import name_in_vllm
    from grpo_runtime.weight_sync.registry import all_backends

    die_with_parent()
    for name in _LOGGERS_OF_EVERY_STEP:
        # a filter, because vLLM takes levels back when it configures logging once more in its core
        logging.getLogger(name).addFilter(_is_warning)

    for name in map(name_in_vllm, all_backends()):
        loader = WeightTransferEngineFactory._registry.get(name)
        if loader is not None and loader().__module__ == _MODULE:
            continue
        WeightTransferEngineFactory.register_engine(name, _MODULE, "StagedWeightTransferEngine")


def _is_warning(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING

"""The inference engines that there are, by name. Another one is a folder beside `vllm` with an `EngineKind`,
and a row here; nothing else imports such a folder.
"""

from grpo_runtime.engines.interface import EngineKind
from grpo_runtime.engines.vllm.kind import VLLM

ENGINE_KINDS: dict[str, EngineKind] = {VLLM.name: VLLM}


def engine_kind(name: str = VLLM.name) -> EngineKind:
    """The one of that name, or vLLM: no field of the spec asks for another one yet."""
    return ENGINE_KINDS[name]

"""What stands between vLLM's arguments and its configuration, with refusals as UserErrors that name the
argument: vLLM's own parser, its checks, and the class of the model.

vLLM starts a process to ask the model's class what it can do, so that a GPU is not touched early. That
process imports torch and vLLM once more: 9 s of a core for every start. Where there is no GPU, or where the
engine will be in this process anyway, the class is asked here.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import ValidationError
from vllm.model_executor.models.registry import ModelRegistry
from vllm.platforms import current_platform
from vllm.utils.argparse_utils import FlexibleArgumentParser

from grpo_runtime.engines.interface import with_user_arguments
from grpo_runtime.errors import UserError
from grpo_runtime.model.fit import require_cpu_heads
from grpo_runtime.model.load import load_config

T = TypeVar("T")


class RefusingParser(FlexibleArgumentParser):
    """Raises UserError where vLLM's parser would print its usage and end the process."""

    def error(self, message: str) -> NoReturn:
        """An argument that is unknown or has a wrong value; the message of argparse names it."""
        raise UserError(f"vLLM refuses engine.args: {_one_line(message)}")


def parse_arguments(
    arguments: Sequence[str], *, add: Callable[[FlexibleArgumentParser], FlexibleArgumentParser]
) -> argparse.Namespace:
    """Parse `arguments` with those that `add` adds to a parser. Raises UserError naming a wrong one."""
    # without --help, which would end the process
    parser = add(RefusingParser(add_help=False))  # type: ignore[no-untyped-call] # vLLM leaves it without types
    try:
        parsed: argparse.Namespace = parser.parse_args(list(arguments))
    except (ValueError, TypeError) as error:
        raise UserError(f"vLLM refuses engine.args: {_one_line(str(error))}") from error
    return parsed


def checked(make: Callable[[], T], *, given: Sequence[str]) -> T:
    """What `make` returns. Raises UserError with `engine.args` when vLLM refuses the parsed arguments.

    vLLM compares arguments with each other and with the model here; its own message may name none of them.
    """
    try:
        return make()
    except (ValueError, TypeError, AssertionError, NotImplementedError) as error:
        raise UserError(
            f"vLLM refuses this configuration{with_user_arguments(given)}: {_sentence(error)}"
        ) from error


def register_model(model_dir: Path) -> None:
    """Load the class of the model in `model_dir` and register it. vLLM itself refuses one that it lacks.

    Raises UserError when the class needs a package that this image lacks, as those of pictures do, and when
    attention on CPU has no kernel for the model's heads.
    """
    if current_platform.is_cpu():
        # vLLM would find out at the first request, and end its process
        require_cpu_heads(load_config(model_dir))
    for architecture in json.loads((model_dir / "config.json").read_text()).get("architectures") or ():
        if not (found := ModelRegistry.models.get(architecture)):
            continue
        try:
            ModelRegistry.register_model(architecture, found.load_model_cls())
        except ModuleNotFoundError as error:
            raise UserError(
                f"vLLM's {architecture} needs the package {error.name}, which this image lacks: set image to "
                "one that has it, as that for GPUs, or model.source to a model of text alone"
            ) from error


def _sentence(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return _one_line(str(error))
    return "; ".join(_detail(detail) for detail in error.errors(include_url=False, include_context=False))


def _detail(detail: Any) -> str:
    name = ".".join(str(part) for part in detail["loc"])
    return f"{name}: {detail['msg']}" if name else str(detail["msg"])


def _one_line(text: str) -> str:
    lines = (line.strip() for line in text.splitlines())
    return " ".join(line for line in lines if not line.startswith("For further information"))

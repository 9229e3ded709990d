"""vLLM's own parser for its arguments, with refusals as UserErrors that name the argument."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

from pydantic import ValidationError
from vllm.utils.argparse_utils import FlexibleArgumentParser

from grpo_runtime.engines.arguments import with_user_arguments
from grpo_runtime.errors import UserError

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

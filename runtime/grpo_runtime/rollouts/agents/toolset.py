"""Tools as the policy sees them, and those that are code of the user: functions, or the methods of a class as
TRL's `environment_factory` has it."""

import asyncio
import functools
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MethodType
from typing import Any

from jsonschema import Draft202012Validator, SchemaError
from jsonschema.exceptions import best_match
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from transformers.utils.chat_template_utils import get_json_schema

from grpo_runtime.errors import UserError
from grpo_runtime.process.user_code import accepted

_MAX_TEXT = 2000
"""What is said of a broken call or a tool's error is cut to so many characters."""
_OWN_METHODS = ("reset", "get_reward")

CallTool = Callable[[dict[str, Any]], Awaitable[str]]
"""Calls a tool with arguments that it takes. Raises ToolFailedError for what the policy is told, and anything
else for a failure that is the environment's."""


class BadCallError(Exception):
    """A call that no tool takes: the policy's own mistake."""


class ToolFailedError(Exception):
    """A tool has failed at a call that it takes."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool, as the policy sees it."""

    json: Mapping[str, Any]
    """As a request for a chat has it, with the schema of its arguments."""
    place: str
    """Where it comes from, for errors."""
    has_others: bool = True
    """Whether it may take arguments that the schema does not name."""

    @property
    def name(self) -> str:
        """What the policy calls it."""
        return str(self.json["function"]["name"])

    def require_schema(self, *, field: str) -> None:
        """Raises UserError for a schema that is none, at which each call would fail."""
        try:
            self._validator.check_schema(self._validator.schema)
        except SchemaError as error:
            raise UserError(
                f"{field}: the arguments of tool {self.name} of {self.place} have no JSON schema: "
                f"{error.message}"
            ) from error

    def arguments(self, written: str) -> dict[str, Any]:
        """The arguments of a call, from JSON. Raises BadCallError for what the schema refuses, and for text
        that is not Unicode, which no server can be sent."""
        try:
            found = json.loads(written or "{}")
            json.dumps(found, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise BadCallError(f"the arguments of {self.name} have text that is not Unicode") from error
        except (ValueError, RecursionError) as error:
            raise BadCallError(f"the arguments of {self.name} are no JSON: {error}") from error
        if not isinstance(found, dict):
            raise BadCallError(f"the arguments of {self.name} are no object, but {written}")
        wrong = best_match(self._validator.iter_errors(found))
        if wrong is not None:
            where = "".join(f" {part}:" for part in wrong.absolute_path)
            raise BadCallError(f"the arguments of {self.name} are wrong:{where} {wrong.message}")
        return found

    @functools.cached_property
    def _validator(self) -> Validator:
        closed: dict[str, Any] = {} if self.has_others else {"additionalProperties": False}
        schema = {**self.json["function"]["parameters"], **closed}
        return validator_for(schema, default=Draft202012Validator)(schema)


def bounded(text: str) -> str:
    """What is said of a failure."""
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."


class EpisodeThread:
    """Runs what an episode calls of the user's code. What is no coroutine runs in a thread, the same one for
    the whole episode, so that no other one waits for it."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1)

    async def run(self, function: Callable[..., Any], /, **arguments: Any) -> Any:
        """What the function returns."""
        if inspect.iscoroutinefunction(function):
            return await function(**arguments)
        call = functools.partial(function, **arguments)
        found = await asyncio.get_running_loop().run_in_executor(self._thread, call)
        return await found if inspect.isawaitable(found) else found

    def close(self) -> None:
        """End the thread, once what runs in it has returned."""
        self._thread.shutdown(wait=False, cancel_futures=True)


class OpenTools:
    """The user's tools in one episode."""

    def __init__(
        self, functions: Mapping[str, Callable[..., Any]], thread: EpisodeThread, object_: Any = None
    ) -> None:
        self.calls: dict[str, CallTool] = {
            name: functools.partial(self._call, function) for name, function in functions.items()
        }
        self._thread = thread
        self._object = object_

    async def reset(self, row: dict[str, Any]) -> str | None:
        """The text with which the episode begins, if there is one. Raises what the user's code raises, and
        TypeError for anything but a text."""
        reset = getattr(self._object, "reset", None)
        if reset is None:
            return None
        text = await self._thread.run(reset, **accepted(reset, row))
        if text is not None and not isinstance(text, str):
            raise TypeError(f"reset returned {type(text).__name__}: return text, or None")
        return text

    async def reward(self) -> Any:
        """What get_reward returns; None without one."""
        get_reward = getattr(self._object, "get_reward", None)
        return None if get_reward is None else await self._thread.run(get_reward)

    async def _call(self, function: Callable[..., Any], arguments: dict[str, Any]) -> str:
        try:
            return text_of(await self._thread.run(function, **arguments))
        except Exception as error:
            raise ToolFailedError(text_of(f"{type(error).__name__}: {error}")) from error


class UserTools:
    """The user's code: a class, or functions."""

    def __init__(self, found: Any, *, field: str, columns: Sequence[str] | None) -> None:
        """Raises UserError for what has no tools, or tools without a schema, and for a `reset` that needs
        what no row has."""
        self._class = found if isinstance(found, type) else None
        if self._class is not None:
            methods = _methods(self._class)
            _require_callable(self._class, methods, field=field, columns=columns)
            self._functions = {
                name: method
                for name, method in methods.items()
                if name not in _OWN_METHODS and not name.startswith("_")
            }
            functions = [_bound(self._class, name) for name in self._functions]
        else:
            functions = list(found) if isinstance(found, list | tuple) else [found]
            for function in functions:
                if not inspect.isroutine(function):
                    raise UserError(
                        f"{field}: {function!r} is no tool: name a class, a function, or a list of functions"
                    )
            self._functions = {function.__name__: function for function in functions}
        if not functions:
            raise UserError(f"{field}: {_name(found)} has no tools: add a method without an underscore")
        self.tools = [_tool(function, field=field) for function in functions]

    async def opened(self, thread: EpisodeThread) -> OpenTools:
        """For one episode, with an object of its own. Raises what the class raises."""
        if self._class is None:
            return OpenTools(self._functions, thread)
        object_ = await thread.run(self._class)
        return OpenTools({name: getattr(object_, name) for name in self._functions}, thread, object_)


def text_of(result: Any) -> str:
    """What a tool returned, as the policy is told. Half of a pair of surrogates, as of a file's name that is
    no UTF-8, is `?`: no chat takes it."""
    text = result if isinstance(result, str) else json.dumps(result, default=str, ensure_ascii=False)
    return text.encode(errors="replace").decode()


def _methods(class_: type) -> dict[str, Callable[..., Any]]:
    return dict(inspect.getmembers(class_, predicate=inspect.isfunction))


def _bound(class_: type, name: str) -> Callable[..., Any]:
    """A method as an object has it, but bound to nothing: no schema has `self`."""
    function: Callable[..., Any] = getattr(class_, name)
    is_static = isinstance(inspect.getattr_static(class_, name), staticmethod)
    return function if is_static else MethodType(function, object())


def _require_callable(
    class_: type,
    methods: Mapping[str, Callable[..., Any]],
    *,
    field: str,
    columns: Sequence[str] | None,
) -> None:
    try:
        inspect.signature(class_).bind()
    except TypeError as error:
        raise UserError(f"{field}: {class_.__name__} must be called without arguments: {error}") from error
    if columns is None or "reset" not in methods:
        return
    reset = _bound(class_, "reset")
    try:
        inspect.signature(reset).bind(**accepted(reset, dict.fromkeys(["prompt", *columns])))
    except TypeError as error:
        raise UserError(
            f"{field}: reset of {class_.__name__} cannot be called ({error}): its arguments may be prompt "
            f"and the columns of the data, {', '.join(columns) or 'of which it has none'}"
        ) from error


def _tool(function: Callable[..., Any], *, field: str) -> Tool:
    name = _name(function)
    try:
        schema = get_json_schema(function)
    except Exception as error:  # of several kinds, by what is missing
        raise UserError(
            f"{field}: tool {name} has no schema: {error} Give its arguments type hints, and describe it and "
            "each of them in a docstring of Google's style"
        ) from error
    parameters = inspect.signature(function).parameters.values()
    return Tool(
        json=schema,
        place="its own code",
        has_others=any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters),
    )


def _name(found: Any) -> str:
    return getattr(found, "__name__", repr(found))

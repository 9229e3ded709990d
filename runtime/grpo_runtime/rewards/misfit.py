"""Why a reward function does not fit the run, in sentences that say what to change. Runs in the worker
process."""

import inspect
import linecache
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_OF_ONE = {"completion", "response"}
"""What functions that score one completion call it."""


def wrong_signature(
    function: Callable[..., Any], arguments: Mapping[str, Any], *, columns: Mapping[str, Any]
) -> str:
    """Why `function` cannot be called with `arguments`."""
    parameters = inspect.signature(function).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    missing = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind not in variadic
        and parameter.name not in arguments
    ]
    if "solution_str" in missing:
        return _like_verl(function, "one completion", _VERL_CALL, columns=columns)
    if "solution_strs" in missing:
        return _like_verl(function, "all completions of a batch", _VERL_BATCH_CALL, columns=columns)
    if missing:
        return _missing(missing, arguments, columns=columns)
    has_slash = any(parameter.kind is parameter.POSITIONAL_ONLY for parameter in parameters)
    return (
        f"its signature is {inspect.signature(function)}, and it is called with keyword arguments: remove "
        f"the {'/' if has_slash else '*'} from it"
    )


def _missing(names: Sequence[str], arguments: Mapping[str, Any], *, columns: Mapping[str, Any]) -> str:
    own = [name for name in arguments if name not in columns]
    of_all = ""
    if not _OF_ONE.isdisjoint(names):
        of_all = "a function gets lists, all completions of a prompt in completions, and returns a list; "
    return (
        f"it needs {' and '.join(names)}, which no call has: {of_all}it can have {', '.join(own)}, and as "
        f"columns of the data {_names(columns)}: name one of these, or give the parameter a default"
    )


_VERL_CALL = '[{name}("", text, right, {{}}) for text, right in zip(completions, answer)]'
_VERL_BATCH_CALL = (
    '{name}([""] * len(completions), [text for text in completions], answer, [{{}}] * len(completions))'
)


def _like_verl(function: Callable[..., Any], scores: str, call: str, *, columns: Mapping[str, Any]) -> str:
    """What to do with verl's `compute_score(data_source, solution_str, ground_truth, extra_info)`, and with
    the one that gets lists of these."""
    written = call.format(name=getattr(function, "__name__", "compute_score"))
    return (
        f"it has the arguments of verl's compute_score, which scores {scores}, and a function here gets "
        "lists, as TRL's do: name one that calls it, such as `def reward(completions, answer, **_): return "
        f"{written}`, with a column of the data in place of answer (there are {_names(columns)}), and "
        'text[0]["content"] in place of text where prompts are chats'
    )


def misfit_of(
    error: Exception,
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    *,
    columns: Mapping[str, Any],
) -> str:
    """Why no call of `function` with such arguments can succeed, where `error` shows that; empty where it may
    be of the completions' texts, or of the function's own data."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    if isinstance(error, KeyError):
        is_missing = _is_missing_argument(error, function, arguments, line=frame.line or "")
        return _missing([error.args[0]], arguments, columns=columns) if is_missing else ""
    raised = f"it raised {type(error).__name__}: {error}"
    is_own = frame.filename == _source_file(function)
    if is_own and (names := _missing_in_get(error, function, arguments)):
        return f"{raised}, and {_missing(names, arguments, columns=columns)}"
    completions = arguments["completions"]
    is_text = isinstance(completions[0], str)
    if not _is_of_another_form(error, completions, is_own=is_own):
        return ""
    form = "is a text, because prompts are texts"
    if not is_text:
        form = 'is a list with one message, whose text is completion[0]["content"], because prompts are chats'
    where = f"line {frame.lineno}: {frame.line}"
    return f"{raised} ({where}): a completion {form}; columns of the data are {_names(columns)}"


def _is_missing_argument(
    error: KeyError, function: Callable[..., Any], arguments: Mapping[str, Any], *, line: str
) -> bool:
    """Whether `error` comes of a line such as `others["solution"]`, where `others` are the further keyword
    arguments of `function`. Any other KeyError is of its own data."""
    others, key = _others(function), error.args[0] if error.args else None
    if not others or not isinstance(key, str) or key in arguments:
        return False
    return re.search(rf"\b{others}(\[|\.pop\()\s*['\"]{re.escape(key)}['\"]", line) is not None


_OF_NO_LIST = re.compile(r"'NoneType' (object is not iterable|has no len)")


def _missing_in_get(
    error: Exception, function: Callable[..., Any], arguments: Mapping[str, Any]
) -> list[str]:
    """The names that `function` reads as in `others.get("solution")` and that no call has, where `error` is
    of a None in place of a list."""
    others = _others(function)
    if not others or not _OF_NO_LIST.search(str(error)):
        return []
    code = inspect.unwrap(function).__code__
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
    source = "".join(inspect.getblock(lines))
    read = re.findall(rf"\b{others}\.get\(\s*['\"](\w+)['\"]\s*\)", source)
    return [name for name in dict.fromkeys(read) if name not in arguments]


def _is_of_another_form(error: Exception, completions: Sequence[Any], *, is_own: bool) -> bool:
    """Whether `error` is of code for completions of the other form: texts, or lists of one message."""
    if isinstance(error, AttributeError):
        pieces = [*completions, *(one[0] for one in completions if isinstance(one, list))]
        return any(error.obj is piece for piece in pieces)
    if isinstance(completions[0], str):
        return is_own and "string indices must be integers" in str(error)
    # what the module re says comes of a frame of its own
    return "got 'list'" in str(error) or (is_own and re.search(r"\blist\b", str(error)) is not None)


def _others(function: Callable[..., Any]) -> str:
    """The name of the further keyword arguments of `function`; empty where it takes none."""
    parameters = inspect.signature(function).parameters.values()
    return next((one.name for one in parameters if one.kind is one.VAR_KEYWORD), "")


def _source_file(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code.co_filename if code else ""


def _names(columns: Mapping[str, Any]) -> str:
    return ", ".join(columns) or "none"

"""Functions of the user: how they are found, and which arguments they take. Only workers run them."""

import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self

from grpo_runtime.errors import UserError

if TYPE_CHECKING:  # workers need nothing of the spec
    from grpo_api.v1alpha1.spec import CodeRef

FILE_MODULE = "grpo_runtime.process.user_file"
"""What the code in a file is imported as, whatever the file is called: no other code has this name."""
FILE_VARIABLE = "GRPO_USER_FILE"
"""Tells child processes of the user's code which file that is."""


@dataclass(frozen=True, kw_only=True)
class FunctionFile:
    """A function in a file that a ConfigMap holds."""

    path: Path
    function: str
    place: str
    """What error messages call the file: its key and ConfigMap."""

    @classmethod
    def of_spec(cls, code: "CodeRef", *, volumes_dir: Path) -> Self:
        """Where a function from a ConfigMap is mounted."""
        from grpo_api.source import Volume, VolumeKind

        folder = volumes_dir / Volume(VolumeKind.CONFIG_MAP, code.name).folder
        place = f"key {code.key} of ConfigMap {code.name}"
        return cls(path=folder / code.key, function=code.function, place=place)


def load_either(
    function: str | None, file: Mapping[str, Any] | None, *, field: str, is_called: bool = True
) -> Any:
    """The callable of a worker's config: in `file`, the fields of a FunctionFile as JSON has them, or else at
    `function`. Raises UserError as `load_file` and `load_function` do."""
    if file is not None:
        place = FunctionFile(**{**file, "path": Path(file["path"])})
        return load_file(place, field=field, is_called=is_called)
    assert function is not None
    return load_function(function, field=field, is_called=is_called)


def load_function(path: str, *, field: str, is_called: bool = True) -> Any:
    """The callable at `module:attribute`, or anything there where it is not to be called. Raises UserError
    that names `field` of the spec, and the module or attribute that is missing."""
    module_name, _, attribute = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"{field}: function {path} needs module {error.name}, which is not in this image: add it there"
        ) from error
    except Exception as error:
        raise UserError(
            f"{field}: importing module {module_name} failed: {type(error).__name__}: {error}"
        ) from error
    place = f"module {module_name}"
    return _attribute_of(module, attribute, place=place, field=field, is_called=is_called)


def load_file(file: FunctionFile, *, field: str, is_called: bool = True) -> Any:
    """The callable in a file, or anything there where it is not to be called. Processes that its code starts
    by spawn find it too.

    Raises UserError, which names `field` of the spec, when the file or the function is missing, or when the
    file raises as it is run.
    """
    path, place = file.path, file.place
    if not path.is_file():
        names = sorted(entry.name for entry in path.parent.glob("[!.]*")) if path.parent.is_dir() else []
        raise UserError(f"{field}: {place} is not there: the ConfigMap has {', '.join(names) or 'no key'}")
    os.environ[FILE_VARIABLE] = str(path)
    try:
        module = run_file(path)
    except ModuleNotFoundError as error:
        raise UserError(
            f"{field}: {place} needs module {error.name}, which is not in this image: add it there"
        ) from error
    except Exception as error:
        raise UserError(f"{field}: running {place} failed: {type(error).__name__}: {error}") from error
    return _attribute_of(module, file.function, place=place, field=field, is_called=is_called)


def run_file(path: Path) -> ModuleType:
    """The module FILE_MODULE, which is the code in the file at `path`. Raises what that code raises."""
    loader = importlib.machinery.SourceFileLoader(FILE_MODULE, str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


def _attribute_of(module: ModuleType, attribute: str, *, place: str, field: str, is_called: bool) -> Any:
    if not hasattr(module, attribute):
        found = ", ".join(name for name in vars(module) if not name.startswith("_")) or "nothing public"
        raise UserError(f"{field}: {place} has no attribute {attribute}: it has {found}")
    value = getattr(module, attribute)
    if is_called and not callable(value):
        raise UserError(f"{field}: {attribute} of {place} is a {type(value).__name__}, not a function")
    return value


def accepted(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments that the signature of `function` takes, by name."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return arguments
    names = {parameter.name for parameter in parameters}
    return {name: value for name, value in arguments.items() if name in names}

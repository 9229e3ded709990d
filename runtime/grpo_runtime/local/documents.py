"""YAML files as `kubectl` reads them: a file may have several documents, and no key may be there twice."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from grpo_api.v1alpha1.job import KIND
from grpo_runtime.errors import UserError


@dataclass(frozen=True)
class Document:
    """One object of a file. `line` is where it begins, from 1."""

    path: Path
    line: int
    data: Any

    @property
    def kind(self) -> str:
        """Its kind; empty when it has none."""
        return str(self.data.get("kind", "")) if isinstance(self.data, dict) else ""

    @property
    def name(self) -> str:
        """Its name; empty when it has none."""
        metadata = self.data.get("metadata") if isinstance(self.data, dict) else None
        return str(metadata.get("name", "")) if isinstance(metadata, dict) else ""


def read_documents(path: Path) -> list[Document]:
    """Every object in a YAML or JSON file; empty documents are left out.

    Raises UserError, with the line, when the file cannot be read or is not YAML.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    try:
        return list(_documents(path, text))
    except yaml.MarkedYAMLError as error:
        where = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{path}{where}: this is not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path}: this is not YAML: {error}") from error


def pick_job(documents: list[Document], *, path: Path, name: str | None = None) -> Document:
    """The GRPOJob to run: the only one, or the one with that name. Raises UserError when there is not one."""
    jobs = [document for document in documents if document.kind == KIND]
    if name is not None:
        jobs = [document for document in jobs if document.name == name]
    if not jobs:
        raise UserError(f"{path} holds no GRPOJob" + (f" of the name {name}" if name else ""))
    if len(jobs) > 1:
        names = ", ".join(document.name or "?" for document in jobs)
        raise UserError(f"{path} holds several GRPOJobs ({names}): choose one with --job NAME")
    return jobs[0]


class _Loader(yaml.SafeLoader):
    """Plain data only. Numbers are written as in JSON: 1e-6 is a number, 12:30:00 and 2026-01-01 are text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[Any] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag != "tag:yaml.org,2002:merge":
                if key_node.value in keys:
                    raise yaml.constructor.ConstructorError(
                        problem=f"the key {key_node.value!r} is there twice", problem_mark=key_node.start_mark
                    )
                keys.add(key_node.value)
        return super().construct_mapping(node, deep=deep)


_NUMBERS = {"tag:yaml.org,2002:int", "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp"}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _NUMBERS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?(0|[1-9][0-9]*|0x[0-9a-fA-F]+)$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|^[-+]?\.inf$|^\.nan$", re.IGNORECASE),
    list("-+.0123456789"),
)


def _documents(path: Path, text: str) -> Iterator[Document]:
    loader = _Loader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            assert node is not None  # because check_node returned True
            data = loader.construct_document(node)
            if data is not None:
                yield Document(path, node.start_mark.line + 1, data)
    finally:
        loader.dispose()

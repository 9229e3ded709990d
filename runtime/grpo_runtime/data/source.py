"""`dataset.source`: from a URL in the spec to prompts."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from grpo_api.contract.run_config import RunConfig
from grpo_api.source import Scheme, Source, parse_source
from grpo_runtime.data.answers import check_answers, require_answer_type
from grpo_runtime.data.files import READERS
from grpo_runtime.data.hub import read_hub
from grpo_runtime.data.prompt import Messages, Prompt
from grpo_runtime.data.reasoning_gym import TASK_URL, evaluated_url, read_reasoning_gym
from grpo_runtime.data.tasks import TASKS
from grpo_runtime.data.values import plain
from grpo_runtime.errors import UserError
from grpo_runtime.storage.paths import path_of, whereabouts

Row = dict[str, Any]


def load_evaluated_prompts(
    run_config: RunConfig, *, volumes_dir: Path, needs_answers: bool
) -> tuple[Prompt, ...]:
    """The prompts of dataset.eval, as `load_prompts` returns them; none without it."""
    dataset = run_config.dataset.of_evaluation
    if dataset is None:
        return ()
    is_task = parse_source(dataset.source).scheme is Scheme.REASONING_GYM
    if is_task:
        url = evaluated_url(dataset.source, seed=run_config.algorithm.seed)
        dataset = dataset.model_copy(update={"source": url})
    prompts = load_prompts(
        run_config.model_copy(update={"dataset": dataset}),
        volumes_dir=volumes_dir,
        needs_answers=needs_answers,
    )
    if not is_task:
        return prompts
    return tuple(replace(prompt, columns={**prompt.columns, TASK_URL: dataset.source}) for prompt in prompts)


def load_prompts(run_config: RunConfig, *, volumes_dir: Path, needs_answers: bool) -> tuple[Prompt, ...]:
    """Every prompt of the run's dataset, at least one, in the dataset's order.

    A column that some rows lack is None there. Raises UserError for a source that cannot be read or has no
    rows, for a row without a prompt, for a missing column, and for a row that names no environment of the
    job; where the rewards need answers (`needs_answers`), for one that nothing can be compared with.
    """
    dataset = run_config.dataset
    rows = _rows(run_config, volumes_dir=volumes_dir)
    if not rows:
        raise UserError(f"dataset.source ({dataset.source}) is empty: it needs at least one row")
    names = list(dict.fromkeys(name for row in rows for name in row))
    _require_column(dataset.prompt, names, field="dataset.prompt", source=dataset.source)
    if needs_answers:
        _require_column(dataset.answer, names, field="dataset.answer", source=dataset.source)
    if needs_answers:
        for number, row in enumerate(rows, start=1):
            require_answer_type(row.get(dataset.answer), column=dataset.answer, row=number)
    # everything but JSON Lines comes from columns of structs
    has_structs = not dataset.source.endswith(".jsonl")
    others = [name for name in names if name != dataset.prompt]
    prompts = tuple(
        Prompt(
            index=index,
            content=_content(
                row.get(dataset.prompt), column=dataset.prompt, row=index + 1, has_structs=has_structs
            ),
            columns={name: plain(row.get(name), column=name, row=index + 1) for name in others},
        )
        for index, row in enumerate(rows)
    )
    if needs_answers:
        check_answers(prompts, column=dataset.answer)
    if dataset.environment is not None:
        _require_column(dataset.environment, names, field="dataset.environment", source=dataset.source)
        known = [environment.name for environment in run_config.environments or ()]
        _require_environments(prompts, column=dataset.environment, known=known)
    return prompts


def _rows(run_config: RunConfig, *, volumes_dir: Path) -> list[Row]:
    source = parse_source(run_config.dataset.source)
    if source.scheme is Scheme.BUILTIN:
        return [
            {"prompt": prompt} | ({} if answer is None else {"answer": answer})
            for prompt, answer in TASKS[source.name]()
        ]
    if source.scheme is Scheme.HUB:
        return read_hub(source.name, dataset=run_config.dataset, hub=run_config.hub)
    if source.scheme is Scheme.REASONING_GYM:
        return read_reasoning_gym(run_config.dataset.source, seed=run_config.algorithm.seed)
    return _read_file(source, url=run_config.dataset.source, volumes_dir=volumes_dir)


def _read_file(source: Source, *, url: str, volumes_dir: Path) -> list[Row]:
    path = path_of(source, volumes_dir=volumes_dir, field="dataset.source")
    if path.suffix not in READERS:
        raise UserError(f"dataset.source ({url}) must end with {' or '.join(READERS)}")
    if not path.is_file():
        raise UserError(f"dataset.source ({url}): there is no file {whereabouts(source, path)}")
    try:
        return READERS[path.suffix](path)
    except OSError as error:
        raise UserError(
            f"dataset.source ({url}): {path} cannot be read: {error.strerror or error}"
        ) from error


def _require_column(name: str, names: list[str], *, field: str, source: str) -> None:
    if name not in names:
        raise UserError(f"{field} ({name}) is not a column of {source}: it has {', '.join(sorted(names))}")


def _require_environments(prompts: Sequence[Prompt], *, column: str, known: Sequence[str]) -> None:
    for prompt in prompts:
        if (found := prompt.columns[column]) not in known:
            raise UserError(
                f"row {prompt.index + 1} of the dataset has {found!r} in column {column}, which is no "
                f"environment of this job: it has {', '.join(known)}"
            )


def _content(value: Any, *, column: str, row: int, has_structs: bool) -> str | Messages:
    if isinstance(value, str):
        return str(plain(value, column=column, row=row))
    if isinstance(value, list) and value and all(_is_message(item) for item in value):
        return [_message(plain(item, column=column, row=row), has_structs=has_structs) for item in value]
    raise UserError(
        f"row {row} of the dataset has no usable prompt in column {column}: it must be text, or a list of "
        "messages with role and content"
    )


def _message(message: Row, *, has_structs: bool) -> Row:
    """A message without keys that are null, because templates ask whether a key such as tool_calls is there.
    A content of null stays. Structs, as of Parquet, have the keys of all of their column, so what is null in
    them is left out too; elsewhere it is an argument of a tool."""
    found = {name: _without_nulls(item) if has_structs else item for name, item in message.items()}
    return {name: item for name, item in found.items() if item is not None or name == "content"}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _is_message(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("role"), str) and "content" in item

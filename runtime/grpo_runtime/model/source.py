"""`model.source`: from a URL in the spec to a directory with a model in it."""

from pathlib import Path
from urllib.parse import urlsplit

from grpo_runtime.errors import UserError


def materialise_model(source: str, *, into: Path) -> Path:
    """The directory that holds the model named by `source`, ready for the trainer and for vLLM.

    `builtin://tiny` is written to `into` (again, if it is there: the bytes are the same); `file:///dir` is
    used where it lies and `into` stays untouched. Raises UserError for any other scheme, and for a
    directory that is missing or is not a Hugging Face model with safetensors weights and a tokenizer.
    """
    url = urlsplit(source)
    if url.scheme == "builtin":
        return _builtin(url.netloc, source=source, into=into)
    if url.scheme == "file" and not url.netloc and url.path:
        return _checked(Path(url.path), source=source)
    raise UserError(
        f"model.source ({source}) is not understood: use builtin://tiny or file:///absolute/directory"
    )


def _builtin(name: str, *, source: str, into: Path) -> Path:
    if name != "tiny":
        raise UserError(f"model.source ({source}) names no built-in model: there is builtin://tiny")
    from grpo_runtime.model.tiny import write_tiny_model

    write_tiny_model(into)
    return into


def _checked(folder: Path, *, source: str) -> Path:
    if not folder.is_dir():
        raise UserError(
            f"model.source ({source}): there is no directory {folder} in this container; mount or bake it"
        )
    if not (folder / "config.json").is_file():
        raise UserError(
            f"model.source ({source}): {folder} has no config.json, so it is not a Hugging Face model"
        )
    # never .bin: those are pickles
    if not any(folder.glob("*.safetensors")):
        raise UserError(
            f"model.source ({source}): {folder} has no *.safetensors file; convert the weights to it"
        )
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        raise UserError(
            f"model.source ({source}): {folder} has no tokenizer.json; save the tokenizer beside the model"
        )
    return folder

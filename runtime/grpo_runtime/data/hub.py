"""Rows of a dataset of the Hugging Face Hub."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo_api.v1alpha1.spec import DatasetSpec, HubSpec
from grpo_runtime.data.values import shorten_floats
from grpo_runtime.errors import UserError
from grpo_runtime.storage.hub import download

_CARD = ("README.md",)


def read_hub(name: str, *, dataset: DatasetSpec, hub: HubSpec) -> list[dict[str, Any]]:
    """All rows of one split of the Hub's dataset `name`, at `dataset.revision`.

    The files are downloaded into the Hub's cache, and the library `datasets` reads them there without the
    network, so a job reads the same bytes online and offline. Raises UserError that names the wrong field.
    """
    card = download("dataset", name, revision=dataset.revision, hub=hub, allow=_CARD)
    # by commit, because the branch may move between the two downloads
    files = download(
        "dataset", name, revision=card.commit, hub=hub, allow=_data_files(card.folder, dataset.subset)
    )
    with _datasets_without_network():
        return _read(files.folder, dataset=dataset)


def _data_files(folder: Path, subset: str | None) -> list[str] | None:
    """Patterns of the files that `subset` needs according to the dataset's card; None for all files."""
    from huggingface_hub import DatasetCard

    card = folder / "README.md"
    if not card.is_file():
        return None
    configs = DatasetCard.load(card).data.to_dict().get("configs") or []
    wanted = [config for config in configs if config.get("config_name", "default") == (subset or "default")]
    patterns: list[str] = []
    for config in wanted or configs:
        folder_prefix = f"{config['data_dir']}/" if config.get("data_dir") else ""
        if (found := config.get("data_files")) is None:
            return None
        for entry in found if isinstance(found, list) else [found]:
            paths = entry["path"] if isinstance(entry, dict) else entry
            patterns += [folder_prefix + path for path in (paths if isinstance(paths, list) else [paths])]
    # the Hub's library filters with fnmatch, where one star matches slashes too
    return [*_CARD, *(pattern.replace("**/", "*") for pattern in patterns)] if patterns else None


def _read(folder: Path, *, dataset: DatasetSpec) -> list[dict[str, Any]]:
    import datasets

    where = dataset.source
    try:
        subsets = datasets.get_dataset_config_names(str(folder))
    except (datasets.exceptions.DatasetsError, OSError, ValueError, RuntimeError) as error:
        raise UserError(f"dataset.source ({where}) has no data that `datasets` can read: {error}") from error
    if dataset.subset is not None and dataset.subset not in subsets:
        raise UserError(
            f"dataset.subset ({dataset.subset}) is not a subset of {where}: it has {', '.join(subsets)}"
        )
    if dataset.subset is None and len(subsets) > 1 and "default" not in subsets:
        raise UserError(f"dataset.subset must be set for {where}: it has {', '.join(subsets)}")
    try:
        splits = datasets.get_dataset_split_names(str(folder), dataset.subset)
        split = dataset.split or "train"
        if split not in splits:
            raise UserError(f"dataset.split ({split}) is not a split of {where}: it has {', '.join(splits)}")
        # a stream writes nothing, so the cache may be mounted read-only
        stream = datasets.load_dataset(str(folder), dataset.subset, split=split, streaming=True)
        rows = list(stream)
    except (datasets.exceptions.DatasetsError, OSError, ValueError, RuntimeError) as error:
        raise UserError(f"dataset.source ({where}) cannot be read: {error}") from error
    # the feature of a list has that of its items; files without types have no features
    items = {name: getattr(found, "feature", found) for name, found in (stream.features or {}).items()}
    dtypes = {name: getattr(item, "dtype", "") for name, item in items.items()}
    shorten_floats(rows, {name: dtype for name, dtype in dtypes.items() if dtype in ("float16", "float32")})
    return rows


@contextlib.contextmanager
def _datasets_without_network() -> Iterator[None]:
    """Let `datasets` be imported in offline mode: all files are in the cache, and a card must not make it ask
    for others."""
    name = "HF_DATASETS_OFFLINE"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before

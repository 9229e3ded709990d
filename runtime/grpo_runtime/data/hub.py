"""Rows of a dataset of the Hugging Face Hub."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo_api.v1alpha1.spec import DatasetSpec, HubSpec
from grpo_runtime.errors import UserError
from grpo_runtime.hub import download

_CARD = ("README.md",)


def read_hub(name: str, *, dataset: DatasetSpec, hub: HubSpec) -> list[dict[str, Any]]:
    """All rows of one split of the Hub's dataset `name`, at `dataset.revision`.

    The files come into the Hub's cache, and the library `datasets` then reads them without any network, so
    offline and online read the same bytes. Raises UserError naming the field that is wrong.
    """
    card = download("dataset", name, revision=dataset.revision, hub=hub, allow=_CARD)
    # by commit: the branch may have moved between the two calls
    files = download(
        "dataset", name, revision=card.commit, hub=hub, allow=_data_files(card.folder, dataset.subset)
    )
    with _datasets_without_network():
        return _read(files.folder, dataset=dataset)


def _data_files(folder: Path, subset: str | None) -> list[str] | None:
    """Patterns of the files that `subset` needs, None for all: what the dataset's card says."""
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
    # fnmatch, which the Hub's library filters by, lets one star match slashes too
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
        # as a stream: nothing is written, so a cache that is mounted read-only will do
        return list(datasets.load_dataset(str(folder), dataset.subset, split=split, streaming=True))
    except (datasets.exceptions.DatasetsError, OSError, ValueError, RuntimeError) as error:
        raise UserError(f"dataset.source ({where}) cannot be read: {error}") from error


@contextlib.contextmanager
def _datasets_without_network() -> Iterator[None]:
    """Import `datasets` as it is offline: all files are here, and a card must not send it anywhere else."""
    name = "HF_DATASETS_OFFLINE"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before

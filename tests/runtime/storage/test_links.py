"""What somebody who may write to a volume puts there as a link to what else is mounted in a pod."""

import json
import os
from pathlib import Path

import pytest
from fake_hub import COMMIT, fill_cache, use_cache

from grpo_api.source import parse_source
from grpo_api.v1alpha1.spec import HubSpec, ModelSpec
from grpo_runtime.errors import UserError
from grpo_runtime.export.files import files_of
from grpo_runtime.model.save import write_what_training_leaves
from grpo_runtime.model.source import LocalModel, materialise_model
from grpo_runtime.model.tiny import write_tiny_model
from grpo_runtime.storage.hub import download
from grpo_runtime.storage.paths import link_out_of, path_of
from grpo_runtime.trainer.checkpoint.manifest import Manifest, damage_of, entry_of
from grpo_runtime.weight_sync.disk.store import FolderStore, StoreError

NAME = "preprocessor_config.json"


@pytest.fixture
def volumes(tmp_path: Path) -> Path:
    """Those of a pod: a claim with a model, and a Secret."""
    secret = tmp_path / "secrets" / "hub" / "token"
    secret.parent.mkdir(parents=True)
    secret.write_text("hf_secret")
    write_tiny_model(tmp_path / "claims" / "models" / "tiny")
    return tmp_path


@pytest.fixture
def model(volumes: Path) -> Path:
    return volumes / "claims" / "models" / "tiny"


def link(path: Path, to: Path) -> None:
    """As somebody writes it who knows where pods mount volumes."""
    path.symlink_to(os.path.relpath(to, path.parent))


def materialised(volumes: Path) -> LocalModel:
    spec = ModelSpec(source="pvc://models/tiny")
    return materialise_model(spec, hub=HubSpec(), volumes_dir=volumes, into=volumes / "made")


def test_a_model_on_a_claim_has_no_link_to_a_secret(volumes: Path, model: Path) -> None:
    assert materialised(volumes).folder == model
    link(model / NAME, volumes / "secrets" / "hub" / "token")
    with pytest.raises(
        UserError, match=r"tiny on claim models has a link to .*/secrets/hub/token, which is not in"
    ) as caught:
        materialised(volumes)
    assert "hf_secret" not in str(caught.value)


def test_a_link_within_the_claim_is_followed(volumes: Path, model: Path) -> None:
    (model.parent / "shared").mkdir()
    (model / "config.json").rename(model.parent / "shared" / "config.json")
    link(model / "config.json", model.parent / "shared" / "config.json")
    link(model.parent / "newest", model)
    spec = ModelSpec(source="pvc://models/newest")
    found = materialise_model(spec, hub=HubSpec(), volumes_dir=volumes, into=volumes / "made")
    assert json.loads((found.folder / "config.json").read_text())


@pytest.mark.parametrize("place", ["", "below/"])
def test_a_folder_or_a_file_of_a_claim_that_is_itself_a_link_is_refused(volumes: Path, place: str) -> None:
    claim = volumes / "claims" / "data"
    (claim / place).mkdir(parents=True)
    link(claim / place / "rows.jsonl", volumes / "secrets" / "hub" / "token")
    source = parse_source(f"pvc://data/{place}rows.jsonl")
    with pytest.raises(UserError, match=r"dataset\.source: .*rows\.jsonl on claim data has a link to"):
        path_of(source, volumes_dir=volumes, field="dataset.source")


def test_a_link_that_came_after_the_model_was_looked_at_is_not_exported(volumes: Path, model: Path) -> None:
    origin, out = materialised(volumes), volumes / "out"
    out.mkdir()
    (model / NAME).write_text("{}")
    write_what_training_leaves(origin, into=out)
    assert (out / NAME).read_text() == "{}"
    (model / NAME).unlink()
    link(model / NAME, volumes / "secrets" / "hub" / "token")
    (out / NAME).unlink()
    with pytest.raises(UserError, match=f"{NAME} is a link to"):
        write_what_training_leaves(origin, into=out)
    assert not (out / NAME).exists()


def test_what_is_exported_has_no_link_out_of_its_folder(volumes: Path, model: Path) -> None:
    names = {file.name for file in files_of(model)}
    link(model / "other.json", model / "config.json")
    assert {file.name for file in files_of(model)} == names | {"other.json"}
    link(model / NAME, volumes / "secrets" / "hub" / "token")
    with pytest.raises(UserError, match="nothing is uploaded"):
        files_of(model)


def test_the_hubs_cache_has_links_to_its_blobs_only(
    volumes: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = use_cache(volumes / "cache", monkeypatch)
    files = {path.name: path.read_bytes() for path in model.iterdir()}
    fill_cache(cache, "model", "org/tiny", files)
    snapshot = download("model", "org/tiny", revision=COMMIT, hub=HubSpec(offline=True))
    link(snapshot.folder / NAME, volumes / "secrets" / "hub" / "token")
    with pytest.raises(UserError, match=r"the Hub's cache has a link to .*/secrets/hub/token"):
        download("model", "org/tiny", revision=COMMIT, hub=HubSpec(offline=True))


def test_an_engine_reads_no_weights_through_a_link_out_of_their_folder(volumes: Path) -> None:
    store = FolderStore(volumes / "weights")
    folder = volumes / "weights" / "version-000001-000001"
    folder.mkdir(parents=True)
    (folder / "whole").write_bytes(b"1")
    assert store.read(f"{folder.name}/whole") == b"1"
    link(folder / "taken", volumes / "secrets" / "hub" / "token")
    with pytest.raises(StoreError, match="taken is a link to"):
        store.read(f"{folder.name}/taken")
    with pytest.raises(StoreError, match="taken is a link to"), store.reading(f"{folder.name}/taken"):
        pass


def test_a_checkpoint_with_a_link_out_of_it_is_damaged(volumes: Path) -> None:
    folder, secret = volumes / "step-000001", volumes / "secrets" / "hub" / "token"
    folder.mkdir()
    link(folder / "state", secret)
    manifest = Manifest.model_construct(files={"state": entry_of(secret)})
    assert damage_of(folder, manifest) == "state is a link out of the checkpoint"


def test_the_first_link_that_leads_out_is_found_at_any_depth(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    link(root / "a" / "loop", root / "a")
    assert link_out_of(root, root) is None
    assert link_out_of(root, root / "missing") is None
    link(root / "a" / "b" / "out", tmp_path / "nothing")
    assert link_out_of(root, root) == tmp_path / "nothing"
    assert link_out_of(root, root / ".." / "other") == tmp_path / "other"

"""Models from the image, from claims and from the Hub, and the errors of what is no model."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from fake_hub import COMMIT, FakeHub, fill_cache, serving, use_cache, use_hub

from grpo_api.v1alpha1.spec import HubSpec, ModelSpec
from grpo_runtime.errors import HubUnreachableError, UserError, VolumeFullError
from grpo_runtime.model.load import load_policy, load_tokenizer
from grpo_runtime.model.save import write_origin
from grpo_runtime.model.source import LocalModel, materialise_model
from grpo_runtime.model.tiny import write_tiny_model
from grpo_runtime.storage.hub import download

OFFLINE = HubSpec(offline=True)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    write_tiny_model(folder)
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the Hub."""
    return use_cache(tmp_path / "cache", monkeypatch)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def copy(tiny: Path, into: Path, *, without: str = "") -> Path:
    into.mkdir(parents=True, exist_ok=True)
    for name, content in files_of(tiny).items():
        if name != without:
            (into / name).write_bytes(content)
    return into


def materialise(
    source: str, into: Path, *, hub: HubSpec | None = None, revision: str | None = None
) -> LocalModel:
    model = ModelSpec(source=source, revision=revision)
    return materialise_model(model, hub=hub or HubSpec(), volumes_dir=into / "volumes", into=into / "made")


def test_the_built_in_model_is_written_where_it_is_wanted(tmp_path: Path) -> None:
    model = materialise("builtin://tiny", tmp_path)
    assert model == LocalModel(tmp_path / "made", "builtin://tiny", commit=None)
    assert load_policy(model.folder, dtype="float32").num_parameters() > 0


def test_models_of_the_image_and_of_claims_are_used_where_they_lie(tiny: Path, tmp_path: Path) -> None:
    baked = copy(tiny, tmp_path / "my model")
    assert materialise(f"file://{tmp_path}/my%20model", tmp_path).folder == baked
    claimed = copy(tiny, tmp_path / "volumes" / "claims" / "models" / "tiny")
    assert materialise("pvc://models/tiny", tmp_path).folder == claimed
    assert not (tmp_path / "made").exists()


def test_a_missing_directory_is_refused_with_the_directories_there_are(tiny: Path, tmp_path: Path) -> None:
    copy(tiny, tmp_path / "volumes" / "claims" / "models" / "tiny")
    with pytest.raises(UserError) as refusal:
        materialise("pvc://models/tyni", tmp_path)
    assert str(refusal.value) == (
        "model.source (pvc://models/tyni): there is no directory tyni on claim models, which has tiny there"
    )


def test_a_whole_claim_may_be_the_model(tiny: Path, tmp_path: Path) -> None:
    claim = copy(tiny, tmp_path / "volumes" / "claims" / "models")
    assert materialise("pvc://models", tmp_path).folder == claim


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_a_directory_that_is_no_model_is_refused_with_what_is_missing(
    tiny: Path, tmp_path: Path, missing: str
) -> None:
    folder = copy(tiny, tmp_path / "broken", without=missing)
    with pytest.raises(UserError, match="config.json" if missing == "config.json" else "safetensors"):
        materialise(f"file://{folder}", tmp_path)


def test_pickled_weights_are_never_loaded(tiny: Path, tmp_path: Path) -> None:
    folder = copy(tiny, tmp_path / "pickled", without="model.safetensors")
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04")
    with pytest.raises(UserError, match=r"no \*\.safetensors file but pytorch_model\.bin, a pickle, which"):
        materialise(f"file://{folder}", tmp_path)


def hub_files(tiny: Path) -> Mapping[str, bytes]:
    """The tiny model beside what repositories have in other formats."""
    other = {
        "README.md": b"card",
        "pytorch_model.bin": b"pickle",
        "onnx/model.onnx": b"o",
        "modeling.py": b"1/0",
    }
    return files_of(tiny) | other


def test_a_model_of_the_hub_comes_as_safetensors_without_code_and_says_its_commit(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeHub({("model", "org/tiny"): hub_files(tiny)})
    with serving(fake) as endpoint:
        use_hub(endpoint, monkeypatch)
        model = materialise("hf://org/tiny", tmp_path)
    assert (model.source, model.commit) == ("hf://org/tiny", COMMIT)
    assert files_of(model.folder) == files_of(tiny)
    assert load_tokenizer(model.folder)("a b").input_ids == load_tokenizer(tiny)("a b").input_ids
    # it is in the cache now, by branch and by commit
    assert materialise("hf://org/tiny", tmp_path, hub=OFFLINE) == model
    assert materialise("hf://org/tiny", tmp_path, hub=OFFLINE, revision=COMMIT) == model


def test_a_new_process_uses_an_offline_cache_that_hf_home_names(tiny: Path, tmp_path: Path) -> None:
    snapshot = fill_cache(tmp_path / "home" / "hub", "model", "org/tiny", hub_files(tiny), ref="v1")
    script = (
        "import sys\nfrom pathlib import Path\nfrom grpo_api.v1alpha1.spec import HubSpec, ModelSpec\n"
        "from grpo_runtime.model.source import materialise_model\nnowhere = Path('/nowhere')\n"
        "model = ModelSpec(source='hf://org/tiny', revision='v1')\n"
        "found = materialise_model(model, hub=HubSpec(offline=True), volumes_dir=nowhere, into=nowhere)\n"
        "print(found.folder)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "HF_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == str(snapshot)


def test_an_unreachable_hub_is_tried_again_and_is_then_a_transient_error_of_its_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    use_hub("http://127.0.0.1:1", monkeypatch)
    with pytest.raises(
        HubUnreachableError, match=r"^model\.source \(hf://org/tiny\) .* the Hub cannot be reached: let"
    ):
        download("model", "org/tiny", revision=None, hub=HubSpec(), retry_seconds=(0.0, 0.0))
    assert caplog.text.count("trying again") == 2


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_hub_that_fails_itself_is_as_one_that_cannot_be_reached(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = FakeHub({}, broken=frozenset({"org/tiny"}), broken_status=status)
    with serving(hub) as endpoint:
        use_hub(endpoint, monkeypatch)
        with pytest.raises(
            HubUnreachableError, match=rf"\(hf://org/tiny\): the Hub answers with HTTP {status}"
        ):
            download("model", "org/tiny", revision=None, hub=HubSpec(), retry_seconds=(0.0,))


def test_a_full_cache_is_reported_as_a_full_volume(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def onto_a_full_volume(*_: object, **__: object) -> None:
        with Path("/dev/full").open("w") as file:
            file.write("x")

    # the library writes to the disk in this function; the error is a real one of the kernel
    monkeypatch.setattr("huggingface_hub.file_download.http_get", onto_a_full_volume)
    with serving(FakeHub({("model", "org/tiny"): files_of(tiny)})) as endpoint:
        use_hub(endpoint, monkeypatch)
        with pytest.raises(VolumeFullError, match=r"is full: .* hub\.cacheClaim \(models\)$"):
            download("model", "org/tiny", revision=None, hub=HubSpec(cache_claim="models"), retry_seconds=())


def test_a_cache_that_may_not_be_written_names_its_claim_and_is_not_tried_again(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # not even root can create a directory there
    use_cache(Path("/sys/cache"), monkeypatch)
    with serving(FakeHub({("model", "org/tiny"): files_of(tiny)})) as endpoint:
        use_hub(endpoint, monkeypatch)
        with pytest.raises(UserError, match=r"^the Hub's cache \(/sys/cache\) .* of hub\.cacheClaim$"):
            download("model", "org/tiny", revision=None, hub=HubSpec(), retry_seconds=(0.0,))
    assert "trying again" not in caplog.text


def test_a_hub_without_the_model_names_the_secret_that_was_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(FakeHub({}, gated=frozenset({"org/gated"}))) as endpoint:
        use_hub(endpoint, monkeypatch)
        with pytest.raises(UserError, match=r"no such model, or it is private: .* hub\.tokenSecret$"):
            materialise("hf://org/none", tmp_path)
        with pytest.raises(UserError, match=r"is gated: .* hub\.tokenSecret \(it is mine\)$"):
            materialise("hf://org/gated", tmp_path, hub=HubSpec(token_secret="mine"))
    # it would answer the same again
    assert "trying again" not in caplog.text


def test_an_empty_cache_offline_says_how_to_fill_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"at revision v2 is not in the cache .*hub\.offline is set: fill"):
        materialise("hf://org/tiny", tmp_path, hub=OFFLINE, revision="v2")


def test_a_saved_model_says_where_it_came_from(tmp_path: Path) -> None:
    write_origin(LocalModel(tmp_path, "hf://org/tiny", commit=COMMIT), into=tmp_path)
    assert json.loads((tmp_path / "origin.json").read_text()) == {"source": "hf://org/tiny", "commit": COMMIT}

"""Uploads to the Hugging Face Hub, through its own library, to a fake Hub."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import use_hub
from fake_upload_hub import TOKEN, FakeUploadHub, serving_uploads
from huggingface_hub import constants
from recorded import RecordedProgress
from s3_server import secret_in

from grpo_api.v1alpha1.spec import ExportSpec
from grpo_runtime.errors import UserError
from grpo_runtime.export.access import UploadCredentials
from grpo_runtime.export.destination import DestinationUnreachableError
from grpo_runtime.export.files import files_of
from grpo_runtime.export.hub import HubDestination
from grpo_runtime.export.upload import ModelUploads, upload

NAME = "org/trained"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeUploadHub]:
    fake = FakeUploadHub()
    with serving_uploads(fake) as address:
        use_hub(address, monkeypatch)
        # its own protocol for large files is not faked
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        yield fake


@pytest.fixture
def secret(tmp_path: Path) -> UploadCredentials:
    return secret_in(tmp_path / "secret", {"token": TOKEN})


def destination(credentials: UploadCredentials, *, private: bool | None = None) -> HubDestination:
    spec = ExportSpec(to=f"hf://{NAME}", secret=credentials.secret, private=private)
    return HubDestination(spec, credentials=credentials, field="export[1].to")


def contents(model: Path) -> dict[str, bytes]:
    return {file.name: file.path.read_bytes() for file in files_of(model)}


def test_every_file_arrives_in_one_commit_of_a_new_private_repository(
    hub: FakeUploadHub, secret: UploadCredentials, model: Path
) -> None:
    progress = RecordedProgress()
    upload(files_of(model), destination=destination(secret, private=True), progress=progress)
    assert hub.repositories[NAME] == contents(model)
    assert hub.commits == [sorted(contents(model))]
    assert hub.private[NAME] in (True, "private")
    assert "uploading 2 of 4 files to export[1].to (hf://org/trained)" in progress.messages


def test_an_upload_that_was_interrupted_before_its_commit_sends_no_large_file_again(
    hub: FakeUploadHub, secret: UploadCredentials, model: Path
) -> None:
    files = files_of(model)
    interrupted = destination(secret)
    interrupted.prepare()
    for file in files:
        interrupted.send(file, on_bytes=lambda _: None)
    sent = [asked for asked in hub.asked if asked.startswith("PUT /lfs/")]
    assert len(sent) == 1
    upload(files, destination=destination(secret), progress=RecordedProgress())
    assert [asked for asked in hub.asked if asked.startswith("PUT /lfs/")] == sent
    assert hub.repositories[NAME] == contents(model)


def test_a_second_upload_commits_only_what_differs(
    hub: FakeUploadHub, secret: UploadCredentials, model: Path
) -> None:
    upload(files_of(model), destination=destination(secret), progress=RecordedProgress())
    upload(files_of(model), destination=destination(secret), progress=RecordedProgress())
    (model / "tokenizer.json").write_text('{"version": "1.1"}')
    upload(files_of(model), destination=destination(secret), progress=RecordedProgress())
    assert hub.repositories[NAME] == contents(model)
    assert hub.commits[1:] == [["tokenizer.json"]]


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors"])
def test_a_file_of_the_same_length_with_other_bytes_is_not_the_one_that_was_sent(
    hub: FakeUploadHub, secret: UploadCredentials, model: Path, name: str
) -> None:
    upload(files_of(model), destination=destination(secret), progress=RecordedProgress())
    hub.repositories[NAME][name] = hub.repositories[NAME][name][::-1]
    held = {file.name: destination(secret).holds(file) for file in files_of(model)}
    assert held == {each: each != name for each in contents(model)}


def test_a_hub_that_fails_is_tried_again(hub: FakeUploadHub, secret: UploadCredentials, model: Path) -> None:
    hub.num_failures = 1
    pauses: list[float] = []
    upload(
        files_of(model),
        destination=destination(secret),
        progress=RecordedProgress(),
        retry_seconds=(3.0,),
        sleep=pauses.append,
    )
    assert pauses == [3.0]
    assert hub.repositories[NAME] == contents(model)


def test_a_hub_that_cannot_be_reached_may_be_later(
    secret: UploadCredentials, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving_uploads(FakeUploadHub()) as address:
        pass
    use_hub(address, monkeypatch)
    with pytest.raises(DestinationUnreachableError, match=r"export\[1\]\.to .*: the Hub cannot be reached"):
        upload(
            files_of(model),
            destination=destination(secret),
            progress=RecordedProgress(),
            retry_seconds=(),
        )


@pytest.mark.parametrize("is_wrong", [True, False], ids=["of nobody", "that may only read"])
def test_a_token_is_refused_with_a_sentence_without_it(
    hub: FakeUploadHub, tmp_path: Path, model: Path, is_wrong: bool
) -> None:
    token = "hf_of_nobody" if is_wrong else TOKEN
    hub.may_write = False
    secret = secret_in(tmp_path / "other", {"token": token})
    with pytest.raises(UserError) as refused:
        upload(files_of(model), destination=destination(secret), progress=RecordedProgress())
    status = 401 if is_wrong else 403
    assert str(refused.value) == (
        f"export[1].to (hf://org/trained): the Hub refuses access (HTTP {status}): let the access token in "
        "the Secret of export[1].secret (it is uploads) write to this repository"
    )
    # addresses of uploads are signed, and the log prints what an error comes from
    assert refused.value.__suppress_context__ and refused.value.__cause__ is None
    assert hub.repositories == {}


@pytest.mark.parametrize("may_write", [True, False])
def test_a_token_that_may_only_read_a_repository_that_is_there_is_found_before_the_first_step(
    hub: FakeUploadHub, secret: UploadCredentials, model: Path, may_write: bool
) -> None:
    hub.repositories[NAME] = {"README.md": b"of somebody else"}
    hub.may_write = may_write
    uploads = ModelUploads([destination(secret)], model)
    if may_write:
        uploads.require_access()
    else:
        with pytest.raises(UserError, match=r"the Hub refuses access \(HTTP 403\): let the access token"):
            uploads.require_access()
    assert hub.repositories == {NAME: {"README.md": b"of somebody else"}}


def test_an_adapter_arrives_with_its_config(
    hub: FakeUploadHub, secret: UploadCredentials, tmp_path: Path
) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors", "tokenizer.json"):
        (adapter / name).write_text(name)
    files = files_of(adapter)
    assert files[-1].name == "adapter_config.json"
    upload(files, destination=destination(secret), progress=RecordedProgress())
    assert hub.repositories[NAME] == contents(adapter)


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no config\.json and no adapter_config\.json"):
        files_of(tmp_path)

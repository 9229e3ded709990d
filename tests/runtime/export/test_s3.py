"""Uploads to a real S3 server, the Versity gateway."""

import hashlib
from pathlib import Path

import pytest
from recorded import RecordedProgress
from s3_server import BUCKET, SECRET_KEY, S3Server, in_bucket, s3_secret, secret_in

from grpo_runtime.cli import main
from grpo_runtime.errors import UserError
from grpo_runtime.export.access import UploadCredentials
from grpo_runtime.export.destination import DestinationUnreachableError
from grpo_runtime.export.files import files_of
from grpo_runtime.export.upload import ModelUploads, upload

FIVE_MIB = 5 * 1024 * 1024


@pytest.fixture
def secret(tmp_path: Path) -> UploadCredentials:
    return s3_secret(tmp_path / "secret")


def stored(server: S3Server) -> dict[str, str]:
    """Digests of the files below the prefix."""
    prefix = server.folder / "buckets" / BUCKET / "run-1"
    return {
        path.relative_to(prefix).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in prefix.rglob("*")
        if path.is_file()
    }


def digests(model: Path) -> dict[str, str]:
    return {file.name: file.sha256 for file in files_of(model)}


def test_every_file_arrives_with_its_digest_and_the_config_last(
    s3: S3Server, secret: UploadCredentials, model: Path
) -> None:
    progress = RecordedProgress()
    files = files_of(model)
    # the large file goes in three parts
    upload(files, destination=in_bucket(s3, secret, part_bytes=FIVE_MIB), progress=progress)
    assert stored(s3) == digests(model)
    assert files[-1].name == "config.json"
    what = "export[0].to (s3://models/run-1)"
    assert progress.messages == [
        f"uploading the model to {what}",
        *(f"uploading {number} of 4 files to {what}" for number in range(1, 5)),
        f"checking 4 files at {what}",
    ]
    assert progress.num_bytes == sum(file.num_bytes for file in files)


def test_a_second_upload_sends_only_what_is_missing_or_differs(
    s3: S3Server, secret: UploadCredentials, model: Path
) -> None:
    upload(files_of(model), destination=in_bucket(s3, secret), progress=RecordedProgress())
    (model / "tokenizer.json").write_text('{"version": "1.1"}')
    (s3.folder / "buckets" / BUCKET / "run-1" / "config.json").unlink()
    again = RecordedProgress()
    upload(files_of(model), destination=in_bucket(s3, secret), progress=again)
    assert stored(s3) == digests(model)
    changed = [model / name for name in ("tokenizer.json", "config.json")]
    assert again.num_bytes == sum(path.stat().st_size for path in changed)


def test_a_store_that_is_away_is_waited_for(s3: S3Server, secret: UploadCredentials, model: Path) -> None:
    s3.stop()
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            s3.start()

    progress = RecordedProgress()
    upload(
        files_of(model),
        destination=in_bucket(s3, secret),
        progress=progress,
        retry_seconds=(1.0, 2.0, 3.0),
        sleep=sleep,
    )
    assert pauses == [1.0, 2.0]
    assert stored(s3) == digests(model)
    assert any("waits 2 s for another try: export[0].to" in message for message in progress.messages)


def test_a_store_that_stays_away_ends_the_upload_with_an_error_that_is_tried_again(
    s3: S3Server, secret: UploadCredentials, model: Path
) -> None:
    s3.stop()
    with pytest.raises(DestinationUnreachableError, match=r"export\[0\]\.to .*cannot be reached"):
        upload(
            files_of(model), destination=in_bucket(s3, secret), progress=RecordedProgress(), retry_seconds=()
        )


def test_a_refusal_names_the_field_and_the_fix_and_no_secret(
    s3: S3Server, tmp_path: Path, model: Path
) -> None:
    wrong = s3_secret(tmp_path / "wrong", secret_key="not-the-secret-key")
    with pytest.raises(UserError) as refused:
        upload(files_of(model), destination=in_bucket(s3, wrong), progress=RecordedProgress())
    assert "export[0].to (s3://models/run-1): the store refuses access (" in str(refused.value)
    assert str(refused.value).endswith(
        "let the credentials in the Secret of export[0].secret (it is uploads) list, read and write there"
    )
    assert "not-the-secret-key" not in str(refused.value) and SECRET_KEY not in str(refused.value)


def test_a_store_that_may_only_be_read_is_found_before_the_first_step(
    s3: S3Server, secret: UploadCredentials, model: Path
) -> None:
    s3.stop()
    s3.start(is_read_only=True)
    with pytest.raises(UserError, match=r"the store refuses access .* list, read and write there"):
        ModelUploads([in_bucket(s3, secret)], model).require_access()
    s3.stop()
    s3.start()
    ModelUploads([in_bucket(s3, secret)], model).require_access()
    assert stored(s3) == {}


def test_a_missing_bucket_is_named(s3: S3Server, secret: UploadCredentials, model: Path) -> None:
    elsewhere = in_bucket(s3, secret, to="s3://no-such-bucket/run-1")
    with pytest.raises(UserError, match=r"the store has no bucket no-such-bucket .*: make it, or correct"):
        upload(files_of(model), destination=elsewhere, progress=RecordedProgress())


def test_a_secret_without_a_key_is_named(s3: S3Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the Secret uploads has no key secretAccessKey: add it"):
        in_bucket(s3, secret_in(tmp_path / "half", {"accessKeyId": "AKIA"}))


def test_the_command_uploads_a_finished_run_by_hand(
    s3: S3Server, secret: UploadCredentials, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    model.rename(tmp_path / "run" / "model")
    given = ["export", str(tmp_path / "run"), "--to", "s3://models/run-1", "--endpoint", s3.endpoint]
    assert main([*given, "--credentials", str(secret.folder)]) == 0
    assert stored(s3) == digests(tmp_path / "run" / "model")
    assert capsys.readouterr().out.splitlines()[-1] == "s3://models/run-1 has all 4 files"
    assert main([*given, "--private", "--credentials", str(secret.folder)]) == 40
    assert "export.private is for hf:// destinations" in capsys.readouterr().err

"""Uploads as the end of a run sees them. `StandInDestination` is a dictionary."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from grpo_runtime.errors import UserError
from grpo_runtime.export.destination import DestinationUnreachableError
from grpo_runtime.export.files import LocalFile, files_of
from grpo_runtime.export.upload import ModelUploads


@dataclass
class StandInDestination:
    refusal: Exception | None = None
    held: dict[str, str] = field(default_factory=dict)
    what: str = "export[0].to (s3://models/run-1)"

    def prepare(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def holds(self, file: LocalFile) -> bool:
        return self.held.get(file.name) == file.sha256

    def send(self, file: LocalFile, *, on_bytes: Callable[[int], None]) -> None:
        self.held[file.name] = file.sha256
        on_bytes(file.num_bytes)

    def publish(self, files: Sequence[LocalFile]) -> None:
        assert [file.name for file in files] == list(self.held)


async def test_every_destination_gets_the_model_and_the_bytes_are_counted(model: Path) -> None:
    destinations = [StandInDestination(), StandInDestination()]
    uploads = ModelUploads(destinations, model)
    await uploads.run()
    assert len(destinations[0].held) == 4
    assert destinations[0].held == destinations[1].held
    num_bytes = sum(file.num_bytes for file in files_of(model))
    assert uploads.state.num_bytes == 2 * num_bytes


async def test_a_refused_upload_says_where_the_model_is_and_how_to_go_on(model: Path) -> None:
    uploads = ModelUploads([StandInDestination(UserError("the store refuses access"))], model)
    with pytest.raises(UserError) as refused:
        await uploads.run()
    assert str(refused.value) == (
        f"every step is done and the model is in {model}, but its upload failed: the store refuses access; "
        "`grpo-runtime export` uploads it without another run"
    )


async def test_where_no_claim_keeps_the_model_a_failed_upload_says_that_it_is_lost(model: Path) -> None:
    uploads = ModelUploads([StandInDestination(UserError("refused"))], model, is_kept=False)
    with pytest.raises(UserError) as refused:
        await uploads.run()
    assert "but its upload failed: refused; the job has no checkpoint.claimName, so the model is lost" in str(
        refused.value
    )
    assert "grpo-runtime export" not in str(refused.value)


def test_a_destination_that_refuses_is_found_before_the_first_step_and_one_that_is_away_is_not_an_error(
    model: Path,
) -> None:
    ModelUploads([StandInDestination(DestinationUnreachableError("away"))], model).require_access()
    with pytest.raises(UserError, match="no such bucket"):
        ModelUploads([StandInDestination(UserError("no such bucket"))], model).require_access()

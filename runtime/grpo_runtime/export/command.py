"""`grpo-runtime export`: uploads the model of a finished run by hand."""

import logging
import sys
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.v1alpha1.spec import ExportSpec
from grpo_runtime.errors import KnownError
from grpo_runtime.export.access import UploadCredentials
from grpo_runtime.export.destination import open_destination
from grpo_runtime.export.files import files_of, is_model
from grpo_runtime.export.upload import upload


@dataclass(frozen=True)
class ExportOptions:
    """The command's options. `credentials` is a folder with the keys of a Secret as files."""

    folder: Path
    to: str
    endpoint: str | None = None
    region: str | None = None
    private: bool | None = None
    credentials: Path | None = None


class _Printed:
    """Prints what an upload does: an `UploadProgress`."""

    def says(self, message: str) -> None:
        print(message, flush=True)

    def sent(self, num_bytes: int) -> None:
        """Nothing: each file is a line already."""


def export(options: ExportOptions) -> int:
    """Upload the model and return the exit code: 0 when every file is there, else that of the error, whose
    sentence is on stderr."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    given = {"to": options.to, "endpoint": options.endpoint, "region": options.region}
    try:
        spec = ExportSpec.model_validate({**given, "private": options.private})
    except ValidationError as error:
        for problem in error.errors():
            place = " ".join(f"--{part}" for part in problem["loc"])
            print(f"{place}: {problem['msg']}".removeprefix(": "), file=sys.stderr)
        return ExitCode.USER_ERROR
    folder = options.folder
    nested = folder / "model"
    try:
        files = files_of(nested if is_model(nested) else folder)
        name = None if options.credentials is None else str(options.credentials)
        credentials = UploadCredentials(name, options.credentials)
        destination = open_destination(spec, credentials=credentials, field="--to")
        upload(files, destination=destination, progress=_Printed())
    except KnownError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(f"{spec.to} has all {len(files)} files")
    return 0

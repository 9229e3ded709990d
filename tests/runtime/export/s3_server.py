"""The Versity gateway, a real S3 server, as a process of this machine; and Secrets as a pod has them."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pod_builder import free_port
from polling import wait_until

from grpo_api.v1alpha1.spec import ExportSpec
from grpo_cluster.binaries import build_all
from grpo_cluster.versions import VERSITYGW, program_path
from grpo_runtime.export.access import UploadCredentials
from grpo_runtime.export.s3 import S3Destination

ACCESS_KEY, SECRET_KEY = "AKIAGRPOTESTS", "a-secret-key-of-the-tests"
BUCKET = "models"


@dataclass
class S3Server:
    """The Versity gateway over `folder`, in which each folder is a bucket."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, *, is_read_only: bool = False) -> None:
        """Serve, and return once it answers. Where it is read-only, it refuses every write, as for
        credentials that may only read."""
        # file systems of test machines may have no extended attributes, in which it would keep metadata
        sidecar = self.folder / "metadata"
        buckets = self.folder / "buckets"
        (buckets / BUCKET).mkdir(parents=True, exist_ok=True)
        sidecar.mkdir(exist_ok=True)
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(program_path("versitygw"), "--port", f"127.0.0.1:{self.port}"),
                    *(["--readonly"] if is_read_only else []),
                    *("posix", "--sidecar", str(sidecar), str(buckets)),
                ],
                env={**os.environ, "ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY},
                stdout=log,
                stderr=log,
            )
        wait_until(self._answers, "the S3 server answers")

    def stop(self) -> None:
        """End it; what it holds stays."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)
            self.process = None

    def _answers(self) -> bool:
        assert self.process is not None and self.process.poll() is None, "the S3 server has ended"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@contextmanager
def served_bucket(folder: Path) -> Iterator[S3Server]:
    """A server over a new folder that has the bucket, built once for a machine."""
    build_all((VERSITYGW,))
    folder.mkdir()
    server = S3Server(folder, free_port())
    server.start()
    try:
        yield server
    finally:
        server.stop()


def secret_in(folder: Path, keys: Mapping[str, str]) -> UploadCredentials:
    """The Secret `uploads` with these keys, as a pod has it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in keys.items():
        (folder / name).write_text(f"{value}\n")
    return UploadCredentials("uploads", folder)


def s3_secret(folder: Path, *, secret_key: str = SECRET_KEY) -> UploadCredentials:
    return secret_in(folder, {"accessKeyId": ACCESS_KEY, "secretAccessKey": secret_key})


def in_bucket(
    server: S3Server,
    credentials: UploadCredentials,
    *,
    to: str = f"s3://{BUCKET}/run-1",
    part_bytes: int = 1 << 25,
) -> S3Destination:
    spec = ExportSpec(to=to, endpoint=server.endpoint, secret=credentials.secret)
    return S3Destination(spec, credentials=credentials, field="export[0].to", part_bytes=part_bytes)

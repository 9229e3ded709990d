"""The store that the RunConfig of a pod names."""

import os
from functools import partial
from pathlib import Path

from grpo_api.contract.exit_codes import ExitCode
from grpo_api.contract.run_config import RunConfig
from grpo_api.contract.volume_paths import weights_folder, weights_path
from grpo_api.v1alpha1.spec.disk import DiskSpec
from grpo_runtime.errors import KnownError, UserError
from grpo_runtime.export.bucket_place import BucketPlace
from grpo_runtime.export.credentials import UploadCredentials
from grpo_runtime.process.background import in_thread
from grpo_runtime.settings import TrainerSettings, read_rollout_settings
from grpo_runtime.weight_sync.disk.publisher import ModelFiles, Publisher
from grpo_runtime.weight_sync.disk.store import FolderStore, StoreError, StoreRefusedError, VersionStore
from grpo_runtime.weight_sync.disk.version_manifest import MANIFEST

_FIELD = "weightSync.disk.to"
FOLLOWED_FOLDER = "GRPO_FOLLOWED_FOLDER"
"""Names the folder with checked versions in the processes of `grpo-runtime follow`, which has no
RunConfig."""
_RETRIES = 3
"""Of a request to a bucket, before an engine's sync fails and is tried again as a whole."""
_BEGIN_SECONDS = 600.0
"""To look through a store and remove what was left unfinished. A store may answer each request late."""


class StoreUnreachableError(KnownError):
    """The store of the weights does not answer, or refuses to be written. A retry helps once it does not."""

    exit_code = ExitCode.TRANSIENT


def store_of_engine() -> VersionStore:
    """The store, in any process of a rollout pod or of `grpo-runtime follow`. Raises UserError as
    `read_rollout_settings` does."""
    if FOLLOWED_FOLDER in os.environ:
        return FolderStore(Path(os.environ[FOLLOWED_FOLDER]))
    settings = read_rollout_settings(os.environ)
    return store_of(settings.run_config, volumes_dir=settings.volumes_dir)


def publisher_of_trainer(settings: TrainerSettings, *, model_files: ModelFiles) -> Publisher:
    """The publisher of an attempt, which begins here. Raises StoreUnreachableError, and SupersededError,
    UserError and VolumeFullError as `Publisher.begin_attempt` does."""
    run_config = settings.run_config
    disk = _disk_of(run_config)
    store = store_of(run_config, volumes_dir=settings.volumes_dir)
    publisher = Publisher(
        store,
        job=run_config.job,
        attempt=settings.attempt,
        keep=disk.keep,
        model_files=model_files,
    )
    try:
        in_thread(publisher.begin_attempt, name="begin-weights").result(_BEGIN_SECONDS)
    except StoreRefusedError as error:
        raise UserError(str(error)) from error
    except StoreError as error:
        raise StoreUnreachableError(str(error)) from error
    except TimeoutError as error:
        raise StoreUnreachableError(
            f"{store.what} has not been looked through within {_BEGIN_SECONDS:g} s: "
            "check endpoint and network"
        ) from error
    return publisher


def _disk_of(run_config: RunConfig) -> DiskSpec:
    disk = run_config.weight_sync.disk
    if disk is None:
        raise UserError("weightSync.backend Disk needs weightSync.disk: say in weightSync.disk.to where to")
    return disk


def store_of(run_config: RunConfig, *, volumes_dir: Path) -> VersionStore:
    """The folder on a claim, or the place in a bucket. Raises UserError when the Secret lacks a key."""
    disk = _disk_of(run_config)
    if disk.is_bucket:
        credentials = UploadCredentials.of(disk.secret_volume, volumes_dir=volumes_dir)
        bucket = BucketPlace(disk.to).bucket
        url = f"s3://{bucket}/{weights_folder(disk, job=run_config.job)}"
        place = BucketPlace(url, endpoint=disk.endpoint, region=disk.region)
        return store_in_bucket(place, credentials=credentials, field=_FIELD)
    folder = weights_path(disk, job=run_config.job, volumes_dir=volumes_dir)
    return FolderStore(folder, what=f"{_FIELD} ({disk.to})")


def store_in_bucket(
    place: BucketPlace, *, credentials: UploadCredentials, field: str, access: str | None = None
) -> VersionStore:
    """A place in a bucket; `field` is what messages call it, and `access` what they ask for when access is
    refused. Raises UserError when the Secret lacks a key."""
    # the library takes a part of a second to import, and a claim needs none of it
    from grpo_runtime.export.s3 import BucketErrors, open_bucket
    from grpo_runtime.weight_sync.disk.s3_store import BucketStore

    return BucketStore(
        partial(open_bucket, place, credentials=credentials, num_retries=_RETRIES),
        errors=BucketErrors(place, credentials=credentials, field=field, access=access),
        last=MANIFEST,
    )

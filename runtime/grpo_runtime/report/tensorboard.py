"""The metrics of every step for TensorBoard."""

from pathlib import Path
from typing import Any

from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import scalar

from grpo_runtime.report.metrics_file import MetricsRecord
from grpo_runtime.storage.volume_errors import volume_errors_named

TENSORBOARD_FOLDER = "tensorboard"


class TensorBoardFiles:
    """Event files in `folder`/tensorboard. What an earlier attempt logged after `start_step` is hidden.

    Raises VolumeFullError, with the name of the volume, when no space is left there.
    """

    def __init__(self, folder: Path, *, start_step: int) -> None:
        self._folder = folder
        with volume_errors_named(folder):
            self._writer = SummaryWriter(str(folder / TENSORBOARD_FOLDER), purge_step=start_step + 1)

    def write(self, record: MetricsRecord) -> None:
        """Add one point to the curve of each metric."""
        with volume_errors_named(self._folder):
            # as one event: each is handed to another thread
            points = Summary()
            for name, value in record.values.items():
                points.MergeFrom(scalar(name, value))
            file_writer: Any = self._writer.file_writer  # torch's type says None, which it is after close
            file_writer.add_summary(points, record.step)
            self._writer.flush()

    def close(self, *, has_failed: bool = False) -> None:
        """Close the event file."""
        self._writer.close()

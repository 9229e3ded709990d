"""The same metrics for TensorBoard."""

from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

TENSORBOARD_FOLDER = "tensorboard"


class TensorBoardWriter:
    """Event files in `folder`/tensorboard. What an earlier attempt logged after `start_step` is hidden."""

    def __init__(self, folder: Path, *, start_step: int) -> None:
        self._writer = SummaryWriter(str(folder / TENSORBOARD_FOLDER), purge_step=start_step + 1)

    def write(self, values: Mapping[str, float], *, step: int) -> None:
        """Log one finished step; `step` counts from 1."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()

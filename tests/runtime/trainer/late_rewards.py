"""A reward whose module is imported only once the file REWARDS_MAY_START is there."""

import os
import time
from pathlib import Path
from typing import Any

while not Path(os.environ["REWARDS_MAY_START"]).exists():
    time.sleep(0.01)


def lengths(*, completions: list[str], **_: Any) -> list[float]:
    return [float(len(completion)) for completion in completions]

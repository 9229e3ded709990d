"""The reward function of both sides, called by TRL's convention."""

import zlib
from typing import Any


def spread(completions: list[str], **_: Any) -> list[float]:
    """A number from 0 to 1 that differs from completion to completion, so that each has an advantage."""
    return [zlib.crc32(completion.encode()) / 2**32 for completion in completions]

"""How an update names the stream that a receiver is to read."""

import re
from dataclasses import dataclass
from typing import Self

from grpo_runtime.weight_sync.disk.version_manifest import version_named
from grpo_runtime.weight_sync.interface import WeightSyncError
from grpo_runtime.weight_sync.stream.digest import TAG_BYTES

_TEXT = re.compile(rf"([0-9a-f]{{16}}) ([a-z0-9-]{{1,40}}) ([0-9a-f]{{{2 * TAG_BYTES}}})")


@dataclass(frozen=True)
class StoredStream:
    """The version `name`, whose stream has this tag, as the sender said that `init` has told of.

    It travels as text on the authenticated control channel, in the place where other backends name a
    connection. The tag is not taken from the store: whoever writes there cannot make other bytes pass.
    """

    sender: str
    name: str
    tag: bytes

    def __str__(self) -> str:
        return f"{self.sender} {self.name} {self.tag.hex()}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` writes. Raises WeightSyncError for anything else, also for a name that is no
        version's, which could be a path."""
        match = _TEXT.fullmatch(text)
        if match is None or version_named(match[2]) is None:
            raise WeightSyncError("weight update refused: it names no version of a store")
        return cls(sender=match[1], name=match[2], tag=bytes.fromhex(match[3]))

"""What an upload says, kept."""

from dataclasses import dataclass, field


@dataclass
class RecordedProgress:
    messages: list[str] = field(default_factory=list)
    num_bytes: int = 0

    def says(self, message: str) -> None:
        self.messages.append(message)

    def sent(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes

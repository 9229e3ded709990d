"""What is gloo's own: where the two ends meet."""

from typing import Any

from receiver_harness import OneEngineSender, Receiver

from grpo_runtime.weight_sync.group import GroupInitInfo


class ListeningReceiver(Receiver):
    """Remembers the info of each meeting."""

    def __init__(self, backend: str) -> None:
        super().__init__(backend)
        self.infos: list[GroupInitInfo] = []

    async def init(self, info: Any) -> None:
        self.infos.append(GroupInitInfo.model_validate(dict(info)))
        await super().init(info)


async def test_every_meeting_has_a_key_of_its_own() -> None:
    """It keeps members apart who come late to an earlier one."""
    receiver = ListeningReceiver("gloo")
    for _ in range(2):
        sender = OneEngineSender("gloo", receiver, timeout_seconds=40.0)
        await sender.init()
        await sender.shutdown()
    await receiver.shutdown()
    first, second = receiver.infos
    assert first.key != second.key
    assert min(len(first.key), len(second.key)) >= 32

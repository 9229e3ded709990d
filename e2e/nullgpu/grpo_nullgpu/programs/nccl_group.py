"""The product's group of NCCL between two processes, each with a GPU of its own.

nccl_group.py meets       both meet, and ten buffers arrive
nccl_group.py alone       nobody else comes: it is given up, and the next group is formed
nccl_group.py lost        the other member is killed once they have met: likewise
nccl_group.py hangs       the third buffer hangs in the call: it is given up
"""

import base64
import json
import subprocess
import sys
import time

import torch
from torch.distributed import Store, TCPStore

from grpo_runtime.weight_sync.group import GroupInitInfo, GroupMember, Invite, find_store, host_store
from grpo_runtime.weight_sync.interface import GroupBrokenError
from grpo_runtime.weight_sync.nccl import NcclGroup, TorchNccl
from grpo_runtime.weight_sync.stream.memory import CudaDevice

ADDRESS, SIZE, NUM_BUFFERS = "127.0.0.1", 1 << 20, 10
ENOUGH_SECONDS = 60.0
"""For what succeeds."""
ALONE_SECONDS, HUNG_SECONDS = 4.0, 3.0
"""After which a meeting and a buffer that cannot succeed are given up."""
Engine = subprocess.Popen[str]


def buffer(number: int) -> torch.Tensor:
    return torch.arange(number, number + SIZE, dtype=torch.int64).to(torch.uint8)


def member(
    rank: int,
    store: Store,
    *,
    key: str,
    nccl_id: bytes = b"",
    invite: Invite = lambda nccl_id: None,
    meeting_seconds: float = ENOUGH_SECONDS,
) -> NcclGroup:
    return NcclGroup(
        store,
        GroupMember(key, rank=rank, size=2, meeting_seconds=meeting_seconds, nccl_id=nccl_id),
        own_address=ADDRESS,
        invite=invite,
        connect=TorchNccl,
        device=CudaDevice(torch.device("cuda", rank)),
    )


def engine() -> None:
    """Waits for an invitation, receives all buffers, and waits."""
    print("ready", flush=True)
    port, key, nccl_id = json.loads(sys.stdin.readline())
    info = GroupInitInfo(
        address=ADDRESS, port=port, key=key, first_rank=1, size=2, meeting_seconds=ENOUGH_SECONDS
    )
    group = member(1, find_store(info), key=key, nccl_id=base64.b64decode(nccl_id))
    print("met", flush=True)
    for number in range(NUM_BUFFERS):
        received = torch.empty(SIZE, dtype=torch.uint8).pin_memory()
        group.broadcast(received, timeout_seconds=60.0).wait()
        print(torch.equal(received, buffer(number)), flush=True)
    sys.stdin.read()


def trainer(key: str, *, store: TCPStore, engines: list[Engine]) -> NcclGroup:
    """Its end of a group with one more engine, which has imported torch before they meet: torch gives all
    meetings of a process as long as its first, which may be ALONE_SECONDS."""
    invited = subprocess.Popen(
        [sys.executable, __file__, "engine"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    engines.append(invited)
    assert answer_of(engines) == "ready"

    def invite(nccl_id: bytes) -> None:
        assert invited.stdin is not None
        print(
            json.dumps([store.port, key, base64.b64encode(nccl_id).decode()]), file=invited.stdin, flush=True
        )

    return member(0, store, key=key, invite=invite)


def answer_of(engines: list[Engine]) -> str:
    """The next line of the last engine."""
    assert engines[-1].stdout is not None
    return engines[-1].stdout.readline().strip()


def send_all(group: NcclGroup, engines: list[Engine], *, buffer_seconds: float = ENOUGH_SECONDS) -> None:
    assert answer_of(engines) == "met"
    for number in range(NUM_BUFFERS):
        group.broadcast(buffer(number).cuda(), timeout_seconds=buffer_seconds).wait()
        print("arrived", answer_of(engines), flush=True)


def main(what: str) -> None:
    store = host_store(ADDRESS, timeout_seconds=ENOUGH_SECONDS)
    engines: list[Engine] = []
    began = time.monotonic()
    try:
        if what == "alone":
            member(0, store, key="first-group-of-all", meeting_seconds=ALONE_SECONDS)
        elif what == "lost":
            group = trainer("first-group-of-all", store=store, engines=engines)
            assert answer_of(engines) == "met"
            engines[0].kill()
            began = time.monotonic()
            for number in range(NUM_BUFFERS):
                group.broadcast(buffer(number), timeout_seconds=HUNG_SECONDS).wait()
        elif what == "hangs":
            group = trainer("first-group-of-all", store=store, engines=engines)
            send_all(group, engines, buffer_seconds=HUNG_SECONDS)
    except GroupBrokenError as error:
        print(f"given up after {time.monotonic() - began:.1f} s: {error}", flush=True)
    if what != "hangs":
        group = trainer("next-group-of-all", store=store, engines=engines)
        send_all(group, engines)
        group.close()
    for process in engines:
        process.kill()
        process.wait()


if __name__ == "__main__":
    if sys.argv[1] == "engine":
        engine()
    else:
        main(sys.argv[1])

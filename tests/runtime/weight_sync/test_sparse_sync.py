"""Engines that are given what changed, by every backend that can: the same weights as if all were sent."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pytest
import torch
from backends import SPARSE
from receiver_harness import Alter, Receiver, accident, make_group_sender
from test_several_engines import sync
from weight_sources import FixedWeights
from worker_processes import EngineOfProcesses, digest_of, engines_of_processes

from grpo_runtime.weight_sync.interface import ControlChannel, WeightSender
from grpo_runtime.weight_sync.source import WeightSource
from grpo_runtime.weight_sync.sparse.sender import SparsePreparation, SparseWeights
from grpo_runtime.weight_sync.stream.host_copy import HostCopy
from grpo_runtime.weight_sync.tag import TAG_BYTES

TIMEOUT_SECONDS = 60.0

pytestmark = pytest.mark.parametrize("backend", [backend.name for backend in SPARSE.values()])


def weights_at(step: int, *, share: float = 0.02) -> dict[str, torch.Tensor]:
    """Weights of which this share changes at each step, bits of NaNs and of zeros among them."""
    weights = {
        "embedding": torch.randn(97, 331, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16),
        "scalar": torch.tensor(1.0),
        "empty": torch.zeros(0, 7),
        "counts": torch.arange(50),
        "same": torch.ones(4000),
        "zeros": torch.zeros(999),
    }
    for number in range(1, step + 1):
        generator = torch.Generator().manual_seed(number)
        for tensor in (weights["embedding"], weights["zeros"]):
            bits = tensor.view(-1).view(torch.int16 if tensor.itemsize == 2 else torch.int32)
            chosen = torch.rand(len(bits), generator=generator) < share
            bits[chosen] = torch.randint(
                -(2**15), 2**15, (int(chosen.sum()),), generator=generator, dtype=bits.dtype
            )
        weights["counts"][number % 50] += 1
    return weights


class Trainer:
    """Makes copies one after the other, which may be altered on their way."""

    def __init__(self, *, full_every: int = 100) -> None:
        self._preparation = SparsePreparation(self._copy, full_every=full_every)

    def prepared(self, weights: Mapping[str, torch.Tensor], *, alter: Alter | None = None) -> SparseWeights:
        sparse = self._preparation(FixedWeights(weights.items()))
        sparse.wait_until_ready(timeout_seconds=60.0)
        if alter is not None:
            for sent in (sparse.copy, sparse.changes):
                if sent is not None:
                    _alter(sent, alter)
        return sparse

    @staticmethod
    def _copy(source: WeightSource) -> HostCopy:
        return HostCopy(source, buffer_bytes=1024)


def _alter(sent: Any, alter: Alter) -> None:
    plain = sent.buffers

    def altered(*, stall_seconds: float) -> Iterator[torch.Tensor]:
        return alter(plain(stall_seconds=stall_seconds))

    sent.buffers = altered


class Fleet:
    """A sender to engines, that syncs weights of one step after the other."""

    def __init__(self, backend: str, engines: Mapping[str, ControlChannel]) -> None:
        self.backend = backend
        self.engines = dict(engines)
        self.sender: WeightSender[object] = make_group_sender(
            backend, self.engines, timeout_seconds=TIMEOUT_SECONDS
        )

    async def sync(self, weights: SparseWeights, *, step: int, names: Collection[str] = ()) -> set[str]:
        """Returns those that failed."""
        return await sync(self.sender, weights, engines=set(names or self.engines), version=f"1.{step}")

    async def connect(self) -> None:
        assert await self.sender.init(self.engines) == {}


async def receivers(backend: str, names: str) -> tuple[Fleet, dict[str, Receiver]]:
    found = {name: engine_of(backend) for name in names}
    fleet = Fleet(backend, found)
    await fleet.connect()
    return fleet, found


def engine_of(backend: str, **settings: bool) -> Receiver:
    shapes = {name: tuple(tensor.shape) for name, tensor in weights_at(0).items()}
    return Receiver(backend, layout=shapes, **settings)


@pytest.mark.at_once
async def test_ten_syncs_of_what_changed_give_the_weights_of_ten_whole_ones(backend: str) -> None:
    fleet, engines = await receivers(backend, "ab")
    trainer = Trainer()
    for step in range(11):
        weights = trainer.prepared(weights_at(step))
        assert await fleet.sync(weights, step=step) == set()
        assert (weights.changes is None) == (step == 0)
        for engine in engines.values():
            assert engine.serves(weights_at(step))
            assert engine.version == f"1.{step}"
        if weights.changes is not None:
            assert weights.num_bytes_sent == weights.changes.table.stream_bytes
            assert weights.num_bytes_sent < 0.05 * weights.num_bytes
    await fleet.sender.shutdown()


@pytest.mark.at_once
async def test_all_weights_are_sent_every_so_many_syncs(backend: str) -> None:
    fleet, _ = await receivers(backend, "a")
    trainer = Trainer(full_every=3)
    is_whole = []
    for step in range(7):
        weights = trainer.prepared(weights_at(step))
        assert await fleet.sync(weights, step=step) == set()
        is_whole.append(weights.num_bytes_sent == weights.num_bytes + TAG_BYTES)
    assert is_whole == [True, False, False, True, False, False, True]
    await fleet.sender.shutdown()


async def test_all_weights_are_sent_where_most_of_them_changed_and_the_log_says_so(
    backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    fleet, engines = await receivers(backend, "a")
    trainer = Trainer()
    for step in range(4):
        generator = torch.Generator().manual_seed(step)
        everything = {
            name: torch.randn(tensor.shape, generator=generator) for name, tensor in weights_at(0).items()
        }
        weights = trainer.prepared(everything)
        assert await fleet.sync(weights, step=step) == set()
        assert weights.changes is None
        assert weights.num_bytes_sent == weights.num_bytes + TAG_BYTES
        assert engines["a"].serves(everything)
    told = [record.getMessage() for record in caplog.records if "weightSync.sparse" in record.message]
    assert len(told) == 1
    assert "spares nothing now: what changed in a step is more than 50 %" in told[0]
    await fleet.sender.shutdown()


@pytest.mark.at_once
async def test_an_engine_that_joins_gets_all_weights_and_then_what_changes(backend: str) -> None:
    first, engines = await receivers(backend, "ab")
    trainer = Trainer()
    for step in range(2):
        weights = trainer.prepared(weights_at(step))
        assert await first.sync(weights, step=step) == set()

    # in mid-step, from the same copy
    joining = engine_of(backend)
    alone = Fleet(backend, {"c": joining})
    await alone.connect()
    before = weights.num_bytes_sent
    assert await alone.sync(weights, step=1) == set()
    assert weights.num_bytes_sent - before == weights.num_bytes + TAG_BYTES
    assert joining.serves(weights_at(1))

    together = Fleet(backend, {**engines, "c": joining})
    await together.connect()
    weights = trainer.prepared(weights_at(2))
    assert await together.sync(weights, step=2) == set()
    assert weights.changes is not None
    assert weights.num_bytes_sent == weights.changes.table.stream_bytes
    assert all(engine.serves(weights_at(2)) for engine in (*engines.values(), joining))

    # at the call for new weights, with the others
    late = engine_of(backend)
    together = Fleet(backend, {**engines, "c": joining, "d": late})
    await together.connect()
    weights = trainer.prepared(weights_at(3))
    assert await together.sync(weights, step=3) == set()
    assert weights.num_bytes_sent == weights.num_bytes + TAG_BYTES
    assert all(engine.serves(weights_at(3)) for engine in (*engines.values(), joining, late))
    await together.sender.shutdown()


@pytest.mark.at_once
async def test_an_engine_that_missed_a_sync_gets_all_weights(backend: str) -> None:
    fleet, engines = await receivers(backend, "ab")
    trainer = Trainer()
    assert await fleet.sync(trainer.prepared(weights_at(0)), step=0) == set()
    assert await fleet.sync(trainer.prepared(weights_at(1)), step=1, names="a") == set()

    weights = trainer.prepared(weights_at(2))
    assert await fleet.sync(weights, step=2) == set()

    assert weights.changes is not None
    assert weights.num_bytes_sent == weights.num_bytes + TAG_BYTES
    assert all(engine.serves(weights_at(2)) for engine in engines.values())
    await fleet.sender.shutdown()


@pytest.mark.at_once
async def test_an_engine_that_lost_what_it_kept_is_given_all_weights_in_the_same_sync(backend: str) -> None:
    """It is another process under the same name, of which the trainer knows nothing."""
    fleet, _ = await receivers(backend, "a")
    trainer = Trainer()
    assert await fleet.sync(trainer.prepared(weights_at(0)), step=0) == set()
    restarted = engine_of(backend)
    fleet = Fleet(backend, {"a": restarted})
    await fleet.connect()
    assert await fleet.sync(trainer.prepared(weights_at(1)), step=1) == set()
    assert restarted.serves(weights_at(1))

    weights = trainer.prepared(weights_at(2))
    assert await fleet.sync(weights, step=2) == set()
    assert weights.num_bytes_sent < 0.05 * weights.num_bytes
    assert restarted.serves(weights_at(2))
    await fleet.sender.shutdown()


@pytest.mark.at_once
async def test_an_engine_with_another_base_than_the_others_is_found_and_none_is_dropped(backend: str) -> None:
    fleet, engines = await receivers(backend, "ab")
    trainer = Trainer()
    for step in range(2):
        assert await fleet.sync(trainer.prepared(weights_at(step)), step=step) == set()
    # another trainer was there in between
    other = Fleet(backend, {"b": engines["b"]})
    await other.connect()
    assert await other.sync(Trainer().prepared(weights_at(7)), step=7) == set()
    assert engines["b"].serves(weights_at(7))
    await other.sender.shutdown()
    fleet = Fleet(backend, engines)
    await fleet.connect()

    assert await fleet.sync(trainer.prepared(weights_at(2)), step=2) == set()

    assert all(engine.serves(weights_at(2)) for engine in engines.values())
    weights = trainer.prepared(weights_at(3))
    assert await fleet.sync(weights, step=3) == set()
    assert weights.num_bytes_sent < 0.05 * weights.num_bytes
    assert all(engine.serves(weights_at(3)) for engine in engines.values())
    await fleet.sender.shutdown()


@pytest.mark.at_once
async def test_an_engine_without_memory_to_keep_weights_is_given_all_of_them(backend: str) -> None:
    """It refuses what changed twice, and is not asked again."""
    engine = engine_of(backend, has_room=False)
    fleet, trainer = Fleet(backend, {"a": engine}), Trainer()
    await fleet.connect()
    num_refused = 0
    plain_update = engine.update

    async def counted(info: Mapping[str, object]) -> None:
        nonlocal num_refused
        num_refused += "changes" in info
        await plain_update(info)

    engine.update = counted  # type: ignore[method-assign]
    for step in range(5):
        assert await fleet.sync(trainer.prepared(weights_at(step)), step=step) == set()
        assert engine.serves(weights_at(step))
    assert num_refused == 2
    await fleet.sender.shutdown()


def flip_a_bit(buffers: Iterator[torch.Tensor]) -> Iterator[torch.Tensor]:
    """On its way, one bit of the first buffer becomes another."""
    for index, buffer in enumerate(buffers):
        sent = buffer.clone()
        if index == 0:
            sent[700] ^= 1
        yield sent


@pytest.mark.at_once
async def test_bytes_that_were_altered_on_their_way_do_not_reach_the_model(backend: str) -> None:
    fleet, engines = await receivers(backend, "a")
    trainer = Trainer()
    assert await fleet.sync(trainer.prepared(weights_at(0)), step=0) == set()
    assert await fleet.sender.start("a") == {}

    failures = await fleet.sender.update(trainer.prepared(weights_at(1), alter=flip_a_bit), engines="a")

    # not as changes, and then not as all weights
    assert "not the bytes announced" in str(failures["a"])
    assert engines["a"].serves(weights_at(0))
    await fleet.sender.shutdown()


@pytest.mark.at_once
async def test_changes_that_are_given_up_leave_what_the_engine_kept(backend: str) -> None:
    fleet, engines = await receivers(backend, "a")
    trainer = Trainer()
    assert await fleet.sync(trainer.prepared(weights_at(0)), step=0) == set()
    weights = trainer.prepared(weights_at(1))
    for _ in range(2):
        assert await fleet.sender.start("a") == {}
        assert await fleet.sender.update(weights, engines="a") == {}
        assert await fleet.sender.abort("a") == {}
        assert engines["a"].serves(weights_at(0))
    assert await fleet.sync(weights, step=1) == set()
    assert weights.changes is not None
    assert weights.num_bytes_sent == 3 * weights.changes.table.stream_bytes
    assert engines["a"].serves(weights_at(1))
    await fleet.sender.shutdown()


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.at_once
async def test_a_killed_engine_is_named_and_the_others_get_the_weights_and_go_on(
    backend: str, num_workers: int
) -> None:
    layout = {name: tuple(tensor.shape) for name, tensor in weights_at(0).items()}
    async with engines_of_processes(backend, "abc", num_workers=num_workers, layout=layout) as engines:
        fleet, trainer = Fleet(backend, engines), Trainer()
        await fleet.connect()
        assert await fleet.sync(trainer.prepared(weights_at(0)), step=0) == set()

        weights = trainer.prepared(weights_at(1), alter=accident(engines["b"].kill, before=1))
        assert await fleet.sync(weights, step=1) == {"b"}
        await require_served(engines, "ac", step=1)

        # as one that is started again, under a name of its own
        weights = trainer.prepared(weights_at(2))
        assert await fleet.sync(weights, step=2, names="ac") == set()
        await require_served(engines, "ac", step=2)
        assert weights.num_bytes_sent < 0.05 * weights.num_bytes
        await fleet.sender.shutdown()


async def require_served(engines: Mapping[str, EngineOfProcesses], names: str, *, step: int) -> None:
    wanted = [f"1.{step}", digest_of(weights_at(step))]
    for name in names:
        assert await engines[name].served() == [wanted] * engines[name].num_workers

from grpo_runtime.trainer.checkpoint.shard import Shards


def owners(sizes: list[int], *, num_ranks: int) -> list[int]:
    shards = Shards(num_ranks)
    return [shards.owner_of_next(size) for size in sizes]


def test_one_rank_writes_everything() -> None:
    assert owners([5, 1, 9], num_ranks=1) == [0, 0, 0]


def test_tensors_are_divided_by_bytes_and_not_by_number() -> None:
    # an embedding, and then layers that are a fifth of it
    assert owners([100, 20, 20, 20, 20, 20, 20, 20], num_ranks=2) == [0, 1, 1, 1, 1, 1, 0, 1]


def test_no_rank_has_more_than_its_part_and_one_tensor() -> None:
    sizes = [(index * 7919) % 97 + 1 for index in range(200)]
    for num_ranks in (2, 3, 8):
        totals = [0] * num_ranks
        for size, owner in zip(sizes, owners(sizes, num_ranks=num_ranks), strict=True):
            totals[owner] += size
        assert max(totals) <= sum(sizes) / num_ranks + max(sizes)


def test_more_ranks_than_tensors_leave_some_without() -> None:
    assert owners([3, 3], num_ranks=4) == [0, 1]

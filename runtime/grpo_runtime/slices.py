"""How a number of things is divided among ranks or engines."""


def slice_of(count: int, *, index: int, num_slices: int) -> slice:
    """Which of `count` things belong to slice `index`: slices are contiguous and their sizes differ by at
    most one."""
    return slice(count * index // num_slices, count * (index + 1) // num_slices)

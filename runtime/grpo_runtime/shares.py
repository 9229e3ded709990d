"""How a number of things is divided among ranks or engines."""


def share(count: int, *, index: int, num_shares: int) -> slice:
    """Which of `count` things belong to share `index`: shares are contiguous and their sizes differ by at
    most one."""
    return slice(count * index // num_shares, count * (index + 1) // num_shares)

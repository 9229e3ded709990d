"""OMP_NUM_THREADS, the number of CPU threads that the environment of a process names. No torch here."""

from collections.abc import Mapping

OMP_NUM_THREADS = "OMP_NUM_THREADS"


def named_threads(environment: Mapping[str, str]) -> int | None:
    """The number of threads that the environment names; None where it names none, or not with a number."""
    # OpenMP allows a list, of which the first number counts
    named = environment.get(OMP_NUM_THREADS, "").partition(",")[0].strip()
    return int(named) if named.isdecimal() and int(named) > 0 else None

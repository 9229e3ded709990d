"""CPU time of other processes."""

import psutil


def seconds_of_descendants() -> float:
    """CPU seconds that all processes started by this one and its children have used, ended ones included."""
    while True:
        try:
            return sum(
                used.user + used.system + used.children_user + used.children_system
                for used in (process.cpu_times() for process in psutil.Process().children(recursive=True))
            )
        except psutil.NoSuchProcess:
            # it has ended since it was listed: its parent has its time now
            continue

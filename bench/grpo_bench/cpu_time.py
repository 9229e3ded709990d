"""CPU time of other processes."""

import psutil


def seconds_of_descendants() -> float:
    """CPU seconds that all processes below this one have used so far, with those that they have seen end."""
    while True:
        try:
            return sum(
                used.user + used.system + used.children_user + used.children_system
                for used in (process.cpu_times() for process in psutil.Process().children(recursive=True))
            )
        except psutil.NoSuchProcess:
            # it ended since they were listed: its parent has its time by now
            continue

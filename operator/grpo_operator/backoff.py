"""How long to wait between tries of what failed. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """Exponential delays with jitter, so that jobs that failed together are not retried together."""

    first_seconds: float = 0.2
    limit_seconds: float = 60.0
    jitter: float = 0.3

    def delay(self, failures: int, *, chance: float) -> float:
        """Seconds to wait after `failures` consecutive failures; `chance` in [0, 1) spreads them."""
        delay = min(self.limit_seconds, self.first_seconds * 2.0 ** min(failures - 1, 30))
        return delay * (1 + self.jitter * (2 * chance - 1))

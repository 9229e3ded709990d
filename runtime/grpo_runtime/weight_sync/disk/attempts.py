"""Which attempt of a job may write versions: each leaves a marker with the job's uid in the store."""

import re

from grpo_api.contract.run_config import JobRef
from grpo_runtime.errors import SupersededError
from grpo_runtime.weight_sync.disk.store import MissingError, VersionStore

_MARKER = re.compile(r"attempt-(\d{6,12})")


class AttemptMarkers:
    """The markers of one job. Markers of a job that used the folder before are ignored, but one that has
    put its own over ours began later."""

    def __init__(self, store: VersionStore, *, job: JobRef, attempt: int) -> None:
        self._store = store
        self._uid = job.uid.encode()
        self._attempt = attempt
        self._own = f"attempt-{attempt:06d}"
        self._is_placed = False

    def place(self) -> None:
        """Refuse every lower attempt from now on, and remove the markers of those. Raises as the store
        does."""
        self._store.put(self._own, self._uid)
        self._is_placed = True
        for attempt, name in self._found():
            if attempt < self._attempt and self._uid_in(name) == self._uid:
                self._store.remove(name)

    def refuse_when_superseded(self) -> None:
        """Raises SupersededError when a higher attempt has begun, or another job, and as the store does."""
        for attempt, name in reversed(self._found()):
            uid = self._uid_in(name)
            if name == self._own and self._is_placed and uid not in (None, self._uid):
                raise SupersededError(
                    f"another job has begun to write weights to {self._store.what}: name a folder of this "
                    "job's own"
                )
            if attempt > self._attempt and uid == self._uid:
                raise SupersededError(
                    f"attempt {attempt} has begun, so attempt {self._attempt} may no longer write weights"
                )

    def _found(self) -> list[tuple[int, str]]:
        matches = (_MARKER.fullmatch(name) for name in self._store.files())
        return sorted((int(match[1]), match[0]) for match in matches if match)

    def _uid_in(self, name: str) -> bytes | None:
        try:
            return self._store.read(name)
        except MissingError:
            # a still higher attempt has removed it, and left its own
            return None

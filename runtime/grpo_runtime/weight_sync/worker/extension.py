"""What is added to vLLM's workers so that they receive weights beside their steps: `update_weights` with a
name as BESIDE begins, and these calls follow it. vLLM mixes the class into its own
(`--worker-extension-cls`)."""

from concurrent.futures import Future
from typing import Any

BESIDE = "receive_beside_as"
"""Of an update that is received beside the engine's steps: its name, which no other has."""


class ReceivingExtension:
    """Calls of a worker whose `weight_transfer_engine` is a StagedWeightTransferEngine."""

    weight_transfer_engine: Any
    _weight_update_active: bool

    def has_received_weights(self, name: str) -> bool:
        """Whether the update of that name is received no more. Raises as `reception` does."""
        return self._reception(name).done()

    def end_weight_reception(self, name: str) -> None:
        """Raise what became of the update of that name, which ends it, as vLLM's `update_weights` does."""
        reception = self._reception(name)
        try:
            reception.result()
        except BaseException:
            self._weight_update_active = False
            raise

    def _reception(self, name: str) -> Future[None]:
        found: Future[None] = self.weight_transfer_engine.reception(name)
        return found

"""Leader election: of several operators only the holder of a Lease (coordination.k8s.io) acts.

Expiry is judged by our own clock from the moment we saw the Lease change, never by the times written in it:
clocks of two machines differ. Every write names the version of the Lease it was decided on, so of two that
want it one wins. A holder that cannot renew gives up well before anybody else may take over.

`kubernetes.aio.leaderelection` was read and not used: its calls have no deadline, so that one that hangs
outlives the lease; a connection error ends it without a word; it never gives a lease back; and it writes
local time as UTC.
"""

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from grpo_operator import errors
from grpo_operator.client import Client, is_in_cluster
from grpo_operator.kinds import LEASES, Manifest

log = logging.getLogger(__name__)


class LeadershipLostError(errors.KubernetesError):
    """Another operator may act from now on: this one must write nothing more and end."""


@dataclass(frozen=True)
class LeaseTimes:
    """Seconds. Others wait `duration` after the last renewal they saw; the holder tries every `retry` and
    begins no try after `renew_deadline`, so it gives up `renew_deadline + retry` after its last renewal at
    the latest. What is left of `duration` is for requests under way."""

    duration: int = 15
    renew_deadline: float = 10.0
    retry: float = 2.0


def own_identity() -> str:
    """Who we are in the Lease: the pod, whose restarted container takes its own Lease up at once; from a
    shell also something random, because a machine may run several operators."""
    host = socket.gethostname()
    return host if is_in_cluster() else f"{host}-{secrets.token_hex(4)}"


class Lease:
    """One candidate for one Lease."""

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        name: str,
        identity: str,
        times: LeaseTimes | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._times = times or LeaseTimes()
        self._monotonic = monotonic
        self._clock = clock
        self._seen_version = ""
        self._seen_at = 0.0
        self._renewed_at = 0.0
        self._told = ""

    async def acquire(self, *, on_look: Callable[[], None] = lambda: None) -> None:
        """Return once we hold the Lease; `on_look` is called after each look while another has it.

        Raises Forbidden when we may not ask for it.
        """
        while True:
            try:
                is_held = await self._try(self._take)
            except errors.Forbidden as error:
                raise errors.Forbidden(
                    f"{error}: grant get, create and patch on leases, or start with --leader-elect=false"
                ) from error
            except errors.Transient as error:
                log.warning("%s; next try in %.0f s", error, self._times.retry)
            else:
                on_look()
                if is_held:
                    log.info(
                        "%s leads: it holds the Lease %s/%s", self._identity, self._namespace, self._name
                    )
                    return
            await asyncio.sleep(self._times.retry)

    async def hold(self) -> None:
        """Renew until cancelled. Raises LeadershipLostError when somebody else may act from now on."""
        while True:
            await asyncio.sleep(self._times.retry)
            try:
                is_held = await self._try(self._take)
            except (errors.Transient, errors.Forbidden) as error:
                log.warning("the Lease %s/%s is not renewed: %s", self._namespace, self._name, error)
                if self._monotonic() + self._times.retry > self._renewed_at + self._times.renew_deadline:
                    raise LeadershipLostError(
                        f"the Lease {self._namespace}/{self._name} could not be renewed: "
                        "another operator may take over"
                    ) from error
            else:
                if not is_held:
                    raise LeadershipLostError(
                        f"another operator has taken the Lease {self._namespace}/{self._name}"
                    )

    async def release(self) -> None:
        """Give the Lease back, so that a standby need not wait for its end. Not ours any more is fine."""
        try:
            await self._try(self._give_back)
        except errors.KubernetesError as error:
            log.warning("the Lease %s/%s is not given back: %s", self._namespace, self._name, error)

    async def _try(self, attempt: Callable[[], Any]) -> bool:
        """One attempt within its time: what hangs must not outlive the Lease."""
        try:
            return bool(await asyncio.wait_for(attempt(), self._times.retry))
        except TimeoutError as error:
            raise errors.Transient(f"no answer within {self._times.retry:.0f} s") from error
        except (errors.Conflict, errors.AlreadyExists) as error:
            raise errors.Transient(f"somebody else was faster: {error}") from error

    async def _take(self) -> bool:
        began = self._monotonic()
        try:
            found = await self._client.get(LEASES, self._namespace, self._name)
        except errors.NotFound:
            await self._client.create(LEASES, self._namespace, self._body(transitions=0))
            self._renewed_at = began
            return True
        spec = found.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder not in ("", self._identity) and not self._is_expired(found, spec):
            self._tell(holder)
            return False
        transitions = int(spec.get("leaseTransitions") or 0) + (holder != self._identity)
        body = self._body(transitions=transitions, since=spec if holder == self._identity else None)
        body["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
        await self._client.apply(LEASES, self._namespace, body)
        self._renewed_at = began
        return True

    async def _give_back(self) -> bool:
        found = await self._client.get(LEASES, self._namespace, self._name)
        if (found.get("spec") or {}).get("holderIdentity") != self._identity:
            return False
        body = self._body(transitions=int(found["spec"].get("leaseTransitions") or 0), since=found["spec"])
        body["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
        body["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
        await self._client.apply(LEASES, self._namespace, body)
        return True

    def _is_expired(self, found: Manifest, spec: Manifest) -> bool:
        version = found["metadata"]["resourceVersion"]
        if version != self._seen_version:
            self._seen_version, self._seen_at = version, self._monotonic()
        duration = float(spec.get("leaseDurationSeconds") or self._times.duration)
        return self._monotonic() >= self._seen_at + duration

    def _tell(self, holder: str) -> None:
        if holder != self._told:
            log.info("standing by: %s holds the Lease %s/%s", holder, self._namespace, self._name)
            self._told = holder

    def _body(self, *, transitions: int, since: Manifest | None = None) -> Manifest:
        now = self._clock().isoformat(timespec="microseconds").replace("+00:00", "Z")
        return {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.name,
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": self._times.duration,
                "acquireTime": since.get("acquireTime", now) if since else now,
                "renewTime": now,
                "leaseTransitions": transitions,
            },
        }

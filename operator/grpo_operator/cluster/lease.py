"""Leader election: of several operators only the holder of a Lease (coordination.k8s.io) acts.

Whether the Lease has expired is decided on our own clock, from the moment we saw the Lease change, and not by
the times written in it: the clocks of two machines differ. Every write carries the resourceVersion it was
decided on, so of two candidates only one succeeds. A holder that cannot renew the Lease stops well before
another candidate may take it.

`kubernetes.aio.leaderelection` is not used. Its requests have no deadline, so one that hangs outlives the
Lease; a connection error ends it without a message; it never gives a Lease back; and it writes local time as
UTC.
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

from grpo_operator.cluster import errors
from grpo_operator.cluster.client import Client
from grpo_operator.cluster.configuration import is_in_cluster
from grpo_operator.cluster.kinds import LEASES, KubeObject

log = logging.getLogger(__name__)


class LeadershipLostError(errors.KubernetesError):
    """Another operator may act from now on, so this one must write nothing more and end."""


@dataclass(frozen=True)
class LeaseTimes:
    """In seconds. Other candidates wait `duration` after the last renewal that they saw. The holder tries to
    renew every `retry` and begins no try after `renew_deadline`, so it stops at the latest
    `renew_deadline + retry` after its last renewal. The rest of `duration` is for requests under way."""

    duration: int = 15
    renew_deadline: float = 10.0
    retry: float = 2.0


def own_identity() -> str:
    """The name in the Lease's holderIdentity. In a pod it is the pod's name, so that a restarted container
    continues with its own Lease at once. From a shell it ends in random characters, because one machine may
    run several operators."""
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
        self._logged_holder = ""

    async def acquire(self, *, on_look: Callable[[], None] = lambda: None) -> None:
        """Return once we hold the Lease. `on_look` is called after each try that got an answer.

        Raises Forbidden when we have no right to Leases.
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
        """Renew until cancelled. Raises LeadershipLostError when another operator may act from now on."""
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
        """Give the Lease back, so that a standby need not wait until it expires. Nothing happens when it is
        no longer ours."""
        try:
            await self._try(self._give_back)
        except errors.KubernetesError as error:
            log.warning("the Lease %s/%s is not given back: %s", self._namespace, self._name, error)

    async def _try(self, attempt: Callable[[], Any]) -> bool:
        """One attempt with a deadline: a request that hangs must not outlive the Lease."""
        try:
            async with asyncio.timeout(self._times.retry):
                return bool(await attempt())
        except TimeoutError as error:
            raise errors.Transient(f"no answer within {self._times.retry:.0f} s") from error
        except (errors.Conflict, errors.AlreadyExists) as error:
            raise errors.Transient(f"another candidate was faster: {error}") from error

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
            self._log_holder(holder)
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

    def _is_expired(self, found: KubeObject, spec: KubeObject) -> bool:
        version = found["metadata"]["resourceVersion"]
        if version != self._seen_version:
            self._seen_version, self._seen_at = version, self._monotonic()
        duration = float(spec.get("leaseDurationSeconds") or self._times.duration)
        return self._monotonic() >= self._seen_at + duration

    def _log_holder(self, holder: str) -> None:
        if holder != self._logged_holder:
            log.info("standing by: %s holds the Lease %s/%s", holder, self._namespace, self._name)
            self._logged_holder = holder

    def _body(self, *, transitions: int, since: KubeObject | None = None) -> KubeObject:
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

"""Which namespaces are looked at, where a label selector leaves some out. The cache shows no job of the
others."""

import asyncio
import logging
from collections.abc import Callable

from grpo_operator.cluster import errors
from grpo_operator.cluster.client import Client
from grpo_operator.cluster.kinds import KubeObject, namespaces_that_match
from grpo_operator.observe.cache import Cache, Key

log = logging.getLogger(__name__)

_RETRY_SECONDS = 5.0


class NamespaceFilter:
    """Follows which namespaces match a label selector. The API server compares the labels: to a watch with a
    selector it reports a namespace that no longer matches as deleted, and one that matches anew as added."""

    def __init__(self, client: Client, cache: Cache, selector: str, *, wake: Callable[[Key], None]) -> None:
        self._client = client
        self._cache = cache
        self._kind = namespaces_that_match(selector)
        self._wake = wake
        self._told: frozenset[str] = frozenset()
        """Namespaces of which the log says that they are left out."""
        self._shown: frozenset[str] = frozenset()
        cache.shown_namespaces = self._shown  # none before the first look

    async def look(self) -> int:
        """List the namespaces that match; returns the version of the list. Raises KubernetesError, also for a
        selector that is none."""
        found = await self._client.list(self._kind, None, keep=_name_of)
        self._show(frozenset(found.items))
        return found.resource_version

    async def run(self) -> None:
        """Follow the labels until cancelled. While the API server does not answer, they stay as they were."""
        while True:
            try:
                since = await self.look()
                async for event, item in self._client.follow(self._kind, None, since=since):
                    self.take_in(event, item)
            except errors.KubernetesError as error:
                log.warning("the labels of namespaces are not followed: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)

    def take_in(self, event: str, item: KubeObject) -> None:
        """Take in what a watch with the selector reports."""
        name = frozenset({_name_of(item)})
        self._show(self._shown - name if event == "DELETED" else self._shown | name)

    def _show(self, names: frozenset[str]) -> None:
        """Act on jobs of these namespaces alone. Those of a namespace that is new are looked at at once."""
        before, self._shown = self._shown, names
        self._cache.shown_namespaces = names
        for key in self._cache.job_keys():
            if key[0] not in before:
                self._wake(key)
        self.log_left_out()

    def log_left_out(self) -> None:
        """Log once of each namespace with jobs that it is left out, and once that it no longer is."""
        left_out = self._cache.left_out_namespaces()
        for name in sorted(left_out - self._told):
            log.info(
                "namespace %s is left out: its labels do not match %s, and its GRPOJobs stay as they are",
                *(name, self._kind.selector),
            )
        for name in sorted(self._told - left_out):
            log.info("namespace %s is no longer left out", name)
        self._told = left_out


def _name_of(item: KubeObject) -> str:
    return str(item["metadata"]["name"])

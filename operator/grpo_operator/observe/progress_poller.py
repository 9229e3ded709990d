"""Asks the trainers of running jobs for their progress, beside the workers that reconcile."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from enum import StrEnum

import aiohttp

from grpo_api.contract.endpoints import ENGINES_PARAMETER, PROGRESS_PATH, TRAINER_PORT
from grpo_api.contract.progress import Progress
from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_api.contract.versions import SchemaSkewError, require_schema_version
from grpo_operator.children.names import trainer_position
from grpo_operator.cluster import errors
from grpo_operator.cluster.client import Client, read_at_most
from grpo_operator.cluster.configuration import is_in_cluster
from grpo_operator.cluster.kinds import KubeObject
from grpo_operator.observe.cache import Cache, Key
from grpo_operator.observe.fair_limit import FairLimit
from grpo_operator.observe.process_state import ProcessState
from grpo_operator.settings import ProgressRoute

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 2.0
MAX_BYTES = 64 * 1024
POLLS_IN_FLIGHT = 40
POLLS_IN_FLIGHT_OF_A_NAMESPACE = 32
"""Trainers that do not answer take the time limit each. Those of one namespace leave room for others."""

Fetch = Callable[[KubeObject, str], Awaitable[bytes]]
"""Reads a path of a trainer pod. Raises KubernetesError when the pod does not answer."""


class PollOutcome(StrEnum):
    """What came of asking a trainer."""

    OK = "ok"
    NO_ANSWER = "no_answer"
    UNREADABLE = "unreadable"
    """The answer is no report, or one of another release."""
    OTHER_JOB = "other_job"
    """A report of another job or attempt: its trainer has got the address."""


class UnreadableProgressError(Exception):
    """An answer that is no progress report. `reason` is the one for the status, the message says more."""

    reason = Reason.PROGRESS_UNREADABLE


class ForeignProgressError(UnreadableProgressError):
    """The report of a runtime of another release."""

    reason = Reason.SCHEMA_SKEW


class Poller:
    """Polls trainer pod 0 of every job that runs, and wakes the job when its status should be updated."""

    def __init__(
        self,
        cache: Cache,
        state: ProcessState,
        fetch: Fetch,
        *,
        wake: Callable[[Key], None],
        seconds: float,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        on_poll: Callable[[PollOutcome], None] = lambda outcome: None,
    ) -> None:
        self._cache = cache
        self._state = state
        self._fetch = fetch
        self._wake = wake
        self._on_poll = on_poll
        self._seconds = seconds
        self._clock = clock
        self._limit = FairLimit(POLLS_IN_FLIGHT, num_of_a_namespace=POLLS_IN_FLIGHT_OF_A_NAMESPACE)

    async def run(self) -> None:
        """Poll until cancelled: each job once in `seconds`, evenly spread, so that hundreds of answers do not
        come at once. Polls that take longer delay no other job: theirs is left out until they are over."""
        polls: dict[Key, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                keys = self._cache.job_keys()
                polls = {key: poll for key, poll in polls.items() if not poll.done()}
                for key in keys:
                    if key not in polls or polls[key].done():
                        polls[key] = group.create_task(self.poll(key))
                    await asyncio.sleep(self._seconds / len(keys))
                if not keys:
                    await asyncio.sleep(self._seconds)

    async def poll(self, key: Key) -> None:
        """Ask one job's trainer, if it runs, and tell it how many engines the job asks for. A trainer that
        does not answer keeps its last report."""
        job = self._cache.job(key)
        if job is None:
            return
        status = job.get("status", {})
        uid, attempt = job["metadata"]["uid"], status.get("attempt", 0)
        pods = self._cache.pods((key[0], uid))
        pod = next((pod for pod in pods if _is_running_first(pod, attempt=attempt)), None)
        if pod is None:
            return
        try:
            async with self._limit.under_way(key[0]):
                body = await self._fetch(pod, _path(num_engines=status.get("rollout", {}).get("desired", 0)))
        except errors.KubernetesError as error:
            self._on_poll(PollOutcome.NO_ANSWER)
            log.debug("%s/%s: no progress from %s: %s", *key, pod["metadata"]["name"], error)
            now = self._clock()
            if self._state.remember_no_answer(key, str(error), uid=uid, attempt=attempt, now=now):
                self._wake(key)
            return
        try:
            progress = read_progress(body)
        except UnreadableProgressError as error:
            self._on_poll(PollOutcome.UNREADABLE)
            problem = ReasonMessage(error.reason, f"the report of {pod['metadata']['name']} {error}")
            if self._state.remember_report_problem(key, problem, uid=uid, attempt=attempt):
                log.warning("%s/%s: %s", *key, problem.message)
                self._wake(key)
            return
        # Addresses are reused: another job's trainer may answer on this one.
        is_ours = (progress.job_uid, progress.attempt) == (uid, attempt)
        self._on_poll(PollOutcome.OK if is_ours else PollOutcome.OTHER_JOB)
        if is_ours and self._state.remember_progress(key, progress, now=self._clock()):
            self._wake(key)


def read_progress(body: bytes) -> Progress:
    """The report in an answer, without fields that only a newer runtime knows.

    Raises UnreadableProgressError when there is none: the pod runs its user's code, so its answer may be
    anything."""
    if len(body) > MAX_BYTES:
        raise UnreadableProgressError(f"is larger than {MAX_BYTES} bytes")
    try:
        require_schema_version(json.loads(body).get("schemaVersion", 0), what="Progress")
        return Progress.model_validate_json(body, extra="ignore")
    except SchemaSkewError as error:
        raise ForeignProgressError(f"cannot be read: {error}") from error
    except (ValueError, AttributeError, RecursionError) as error:
        raise UnreadableProgressError(f"cannot be read: {error}") from error


def _path(*, num_engines: int) -> str:
    return PROGRESS_PATH + (f"?{ENGINES_PARAMETER}={num_engines}" if num_engines else "")


def _is_running_first(pod: KubeObject, *, attempt: int) -> bool:
    is_first = trainer_position(pod["metadata"]["name"]) == (attempt, 0)
    return is_first and pod.get("status", {}).get("phase") == "Running"


def choose_fetch(route: ProgressRoute, client: Client, session: aiohttp.ClientSession) -> Fetch:
    """How this process reads from a trainer pod."""
    if route is ProgressRoute.AUTO:
        route = ProgressRoute.POD_IP if is_in_cluster() else ProgressRoute.PROXY

    async def by_pod_ip(pod: KubeObject, path: str) -> bytes:
        address = pod["status"].get("podIP")
        if not address:
            raise errors.Transient("the pod has no address yet")
        host = f"[{address}]" if ":" in address else address
        try:
            async with session.get(
                f"http://{host}:{TRAINER_PORT}{path}",
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
                allow_redirects=False,
            ) as response:
                if response.status != 200:
                    raise errors.Transient(f"HTTP {response.status}")
                return await read_at_most(response.content, num_bytes=MAX_BYTES + 1)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise errors.Transient(str(error) or "timed out") from error

    async def by_proxy(pod: KubeObject, path: str) -> bytes:
        meta = pod["metadata"]
        return await client.proxy_get(
            meta["namespace"],
            meta["name"],
            TRAINER_PORT,
            path,
            timeout_seconds=TIMEOUT_SECONDS,
            max_bytes=MAX_BYTES,
        )

    return by_pod_ip if route is ProgressRoute.POD_IP else by_proxy

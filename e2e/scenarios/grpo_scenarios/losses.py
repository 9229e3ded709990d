"""A job whose parts are lost one after the other while it runs, and what is seen of it from outside."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from grpo_api.contract.endpoints import ROLLOUT_PORT
from grpo_cluster import processes
from grpo_cluster.console import say
from grpo_cluster.network import inside
from grpo_cluster.settings import ClusterError, ClusterSettings
from grpo_runtime.engines import routes
from grpo_runtime.report.metrics_file import MetricsRecord
from grpo_scenarios import strike
from grpo_scenarios.namespace import Namespace, Object
from grpo_scenarios.pod_processes import Container, find_container

PHASES = {
    "generation": '"seed"',
    "pause": f"POST {routes.PAUSE_PATH}",
    "init": f"POST {routes.INIT_PATH}",
    "start": f"POST {routes.START_PATH}",
    "transfer": f"POST {routes.UPDATE_PATH}",
    "finish": f"POST {routes.FINISH_PATH}",
    "resume, just after finish": f"POST {routes.RESUME_PATH}",
    "verify": f"POST {routes.LOGPROBS_PATH}",
    "admit": f"POST {routes.ADMIT_PATH}",
}
"""What the packet to an engine contains that begins a phase: the route of a call, or the seed of samples."""
FOUND_SECONDS = 15 + 1
"""Within which the trainer finds a loss, and the time to say so on a machine that is busy."""
STRIKE_SECONDS = 60
"""How long a phase may be waited for. Each step has all of them, but for init."""


@dataclass(frozen=True)
class LossyJob:
    """A running job with two engines and a claim."""

    namespace: Namespace
    name: str
    claim: str

    # Looking

    @property
    def status(self) -> Object:
        return self.namespace.status(self.name)

    def engines(self) -> list[Object]:
        """The rollout pods, the one whose container was restarted least often first."""
        pods = self.namespace.pods_of(self.name, "rollout")
        return sorted(pods, key=lambda pod: (_num_restarts(pod), pod["metadata"]["name"]))

    def trainer(self) -> Object:
        (pod,) = self.namespace.pods_of(self.name, "trainer")
        return pod

    def require_missed(self, engine: str, phase: str = "", *, since: float) -> float:
        """Wait until the trainer has logged that an engine failed, in this phase where one is given. Returns
        after how many seconds it said that something is wrong with it, and fails when those are more than
        FOUND_SECONDS."""
        signs = "did not get|has ended|hangs|is Suspect|is Lost"
        missed = re.compile(rf"(\S+) .*(engine {engine} .*({signs})\b|a request failed)")
        if phase == "generation":
            # a signal that comes as the last sample is done is found by the pause after it
            in_phase = "a request failed|hangs|has ended|: pause: "
        else:
            in_phase = f": {phase.partition(',')[0]}: " if phase else ""

        def found() -> list[re.Match[str]]:
            hits = [hit for hit in map(missed.match, self._log()) if hit and _time(hit) > since]
            causes = "did not get|a request failed|hangs|has ended"
            return hits if any(re.search(causes, hit.string) for hit in hits) else []

        hits = self.namespace.wait_until(found, f"{engine} to fail in {phase}", timeout_seconds=20)
        assert any(re.search(in_phase, hit.string) for hit in hits), [hit.string for hit in hits]
        seconds = _time(hits[0]) - since
        assert seconds <= FOUND_SECONDS, [hit.string for hit in hits]
        return seconds

    def require_hung(self, engine: str, why: str, *, since: float) -> None:
        """Fail unless the trainer has logged that an engine hangs, and why; or that it did not pause, as
        one does that froze when its last sample was done."""
        signs = f"hangs, .*: {why}|did not get weights .*: pause: "
        hung = re.compile(rf"(\S+) .*engine {engine} ({signs})")
        assert any(_time(hit) > since for hit in map(hung.match, self._log()) if hit), self._log()[-20:]

    def failed_syncs(self, *, since: float) -> list[str]:
        """What the trainer has logged of failed syncs since a time."""
        failed = map(re.compile(r"(\S+) .* did not get weights ").match, self._log())
        return [hit.string for hit in failed if hit and _time(hit) > since]

    def _log(self) -> list[str]:
        name = self.trainer()["metadata"]["name"]
        return self.namespace.kubectl("logs", name, "--timestamps").splitlines()

    def complaint(self, kind: str) -> str:
        """The message of a condition that is not True; empty when it is."""
        conditions = self.status.get("conditions", [])
        found = (item["message"] for item in conditions if item["type"] == kind and item["status"] != "True")
        return next(found, "")

    # Waiting

    def wait_for_steps(self, number: int, *, since: float) -> list[MetricsRecord]:
        """Wait until so many steps or more have ended since a time, and return them."""

        def ended() -> list[MetricsRecord]:
            records = [record for record in self.namespace.metrics(self.claim) if record.time > since]
            return records if len(records) >= number else []

        return self.namespace.wait_until(ended, f"{number} steps", timeout_seconds=60)

    def wait_for_current(self, number: int) -> None:
        """Wait until the job says that so many engines have the newest weights."""
        self.namespace.wait_until(
            lambda: self.status["rollout"]["current"] == number, f"{number} engines", timeout_seconds=20
        )

    def wait_for_both(self) -> None:
        """Wait until a step has given both engines the newest weights."""

        def has_both() -> bool:
            last = self.namespace.metrics(self.claim)[-1]
            return last.values.get("sync/engines") == 2 and self.status["rollout"]["current"] == 2

        self.namespace.wait_until(has_both, "two engines on the newest weights", timeout_seconds=90)

    def wait_for_container(self, pod: str, *, other_than: Container) -> Container:
        """Wait until a pod has another container than before, and return that."""

        def successor() -> Container | None:
            found = find_container(self.namespace.target.get("pod", pod, "--namespace", self.namespace.name))
            return found if found and found.identifier != other_than.identifier else None

        return self.namespace.wait_until(successor, f"{pod} to be started again", timeout_seconds=60)

    def bring_back(self, killed: Container) -> None:
        """Wait until the kubelet has started an engine again. From the second time on it waits before it
        does; then the pod is deleted instead, whose successor starts at once."""

        def is_started_or_deleted() -> bool:
            pod = self.namespace.target.get("pod", killed.pod, "--namespace", self.namespace.name)
            if "CrashLoopBackOff" in json.dumps(pod["status"].get("containerStatuses")):
                self.namespace.delete_pod(killed.pod, is_graceful=False)
                return True
            found = find_container(pod)
            return found is not None and found.identifier != killed.identifier

        self.namespace.wait_until(is_started_or_deleted, f"{killed.pod} to come back", timeout_seconds=60)

    def wait_for_trainer(self, *, other_than: str) -> Container:
        """Wait until another trainer pod than this one runs, and return its container."""

        def successor() -> Container | None:
            pods = self.namespace.pods_of(self.name, "trainer")
            others = [pod for pod in pods if pod["metadata"]["name"] != other_than]
            return find_container(others[0]) if others else None

        return self.namespace.wait_until(successor, "another trainer pod", timeout_seconds=60)


@contextmanager
def striking(
    phase: str, *, of: Container, at: Sequence[Container], number: signal.Signals
) -> Iterator["Strike"]:
    """Signal the containers `at` in the moment in which a phase begins for the engine `of`.

    The packet that begins it does not reach the engine before that, so that the phase cannot be over. One
    that asks for samples does: they take long enough, and the engine is to be at work.
    """
    content = PHASES[phase]
    held = [_drop_packets_to(of.address, content=content)] if phase != "generation" else []
    command = [
        *(*inside(_node()), sys.executable, strike.__file__),
        *("--address", of.address, "--port", str(ROLLOUT_PORT), "--content", content),
        *("--signal", number.name, "--pids", *(str(pid) for container in at for pid in container.pids)),
    ]
    # a packet that is dropped before the program listens is sent again
    with _rules(held), subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "listening\n"
            yield Strike(phase, process)
        finally:
            process.kill()


@dataclass(frozen=True)
class Strike:
    """A program that waits for its moment."""

    phase: str
    process: "subprocess.Popen[str]"

    def wait(self) -> float:
        """When the signal was sent."""
        output, _ = self.process.communicate(timeout=STRIKE_SECONDS)
        if self.process.returncode != 0:
            raise ClusterError(f"no process was signalled in {self.phase}")
        return float(output)


@contextmanager
def dropping(*pairs: tuple[str, str], share: float = 1.0) -> Iterator[None]:
    """Drop this share of the packets between addresses, in both directions."""
    chance = [] if share == 1.0 else ["-m", "statistic", "--mode", "random", "--probability", str(share)]
    both_ways = [direction for pair in pairs for direction in (pair, pair[::-1])]
    with _rules(
        [["--source", one, "--destination", other, *chance, "--jump", "DROP"] for one, other in both_ways]
    ):
        yield


def _drop_packets_to(address: str, *, content: str) -> list[str]:
    port = ["--protocol", "tcp", "--destination-port", str(ROLLOUT_PORT)]
    match = ["-m", "string", "--algo", "bm", "--string", content]
    return ["--destination", address, *port, *match, "--jump", "DROP"]


@contextmanager
def _rules(rules: Sequence[Sequence[str]]) -> Iterator[None]:
    """Rules for what passes through the node, between its pods too."""
    done: list[Sequence[str]] = []
    try:
        for rule in rules:
            _iptables("--insert", rule)
            done.append(rule)
        yield
    finally:
        for rule in done:
            _iptables("--delete", rule)


def _iptables(action: str, rule: Sequence[str]) -> None:
    command = [*inside(_node()), "iptables", action, "FORWARD", *rule]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise ClusterError(f"`{' '.join(command)}` failed: {finished.stderr.strip()}")


def _node() -> processes.Process:
    node = processes.running(ClusterSettings.for_instance(), "node0")
    if node is None:
        raise ClusterError("node0 does not run: `make cluster-up`")
    return node


def print_row(loss: str, phase: str = "", *, since: float, found_seconds: float | None = None) -> None:
    """Print what was lost, and after how many seconds the trainer knew and all was well again, as
    docs/benchmarks.md has them."""
    found = "" if found_seconds is None else f"{found_seconds:4.1f} s"
    say(f"    | {loss} | {phase} | {found} | {time.time() - since:.0f} s |")


def _time(hit: re.Match[str]) -> float:
    return datetime.fromisoformat(hit[1]).timestamp()


def _num_restarts(pod: Object) -> int:
    (status,) = pod["status"].get("containerStatuses") or [{}]
    number: int = status.get("restartCount", 0)
    return number

"""The plug-in of kubectl over a fake kubectl: what it says of objects, what it asks for, and how it ends."""

import ast
import collections
import importlib.machinery
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from grpo_api.contract.endpoints import TRAINER_PORT
from grpo_api.contract.reasons import Reason
from grpo_api.v1alpha1.status import ConditionType

PLUGIN = Path(__file__).parents[2] / "operator" / "kubectl-grpo"
Object = dict[str, Any]
NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
POD = "copy-3f81c2-trainer-a1-0"
PASSWORD = "correct-horse-battery"


class Shell:
    """A shell with the plug-in and the fake kubectl on its PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answers: list[Object] = []
        (folder / "kubectl").write_text((Path(__file__).with_name("fake_kubectl.py")).read_text())
        (folder / "kubectl").chmod(0o755)
        shutil.copy(PLUGIN, folder)
        (folder / "calls.jsonl").touch()

    def answer(self, *words: str, thing: Object | list[Object] | None = None, **more: Any) -> None:
        """Answer calls that have these words in their arguments with an object, a list of them, or a text."""
        if thing is not None:
            listed = {"kind": "List", "items": thing} if isinstance(thing, list) else thing
            more = {"stdout": json.dumps(listed)}
        self.answers.append({"words": list(words), **more})

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        (self.folder / "answers.json").write_text(json.dumps(self.answers))
        python = Path(sys.executable).parent
        environment = {"PATH": f"{self.folder}:{python}", "COLUMNS": "2000", "LC_ALL": "C"}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        # without site-packages, as on a machine that has none of ours
        command = [sys.executable, "-SE", str(self.folder / "kubectl-grpo"), *arguments]
        return subprocess.Popen(command, cwd=self.folder, env=environment, encoding="utf-8", **streams)

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, standard output and standard error."""
        with self.start(*arguments) as process:
            out, error = process.communicate(timeout=60)
        assert "Traceback" not in error, error
        return process.returncode, out, error

    def says(self, *arguments: str) -> str:
        code, out, error = self.run(*arguments)
        assert (code, error) == (0, ""), error
        return out

    def is_told(self, *arguments: str) -> str:
        code, _, error = self.run(*arguments)
        assert code == 1 and error.startswith(f"kubectl grpo {arguments[0]}: ")
        return error.strip().removeprefix(f"kubectl grpo {arguments[0]}: ")

    @property
    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "calls.jsonl").read_text().splitlines()]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture(scope="module")
def plugin() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("kubectl_grpo", str(PLUGIN))
    spec = importlib.util.spec_from_loader("kubectl_grpo", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def condition(kind: str, status: str, reason: str, message: str = "") -> Object:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def job(*conditions: Object, spec: Object | None = None, name: str = "copy", **status: Any) -> Object:
    return {
        "kind": "GRPOJob",
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-of-{name}"},
        "spec": spec or {},
        "status": {
            "phase": "Running",
            "conditions": list(conditions),
            "attempt": 1,
            "totalSteps": 200,
            **status,
        },
    }


def pod(name: str = POD, *, role: str = "trainer", job: str = "copy", **status: Any) -> Object:
    labels = {"grpo.dev/job-uid": f"uid-of-{job}", "grpo.dev/role": role, "grpo.dev/attempt": "1"}
    return {
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-of-{name}", "labels": labels},
        "spec": {"containers": [{"name": role}]},
        "status": {"phase": "Running", "conditions": [condition("Ready", "True", "")], **status},
    }


def container(state: Object, **more: Any) -> Object:
    return {"containerStatuses": [{"name": "trainer", "state": state, **more}], "conditions": []}


def warning(about: Object, reason: str, message: str, **more: Any) -> Object:
    meta = about["metadata"]
    return {
        "metadata": {},
        "involvedObject": {"kind": about.get("kind", "Pod"), "name": meta["name"], "uid": meta["uid"]},
        **{"reason": reason, "message": message, "lastTimestamp": "2026-11-29T11:00:00Z", **more},
    }


def forbidden(verb: str, resource: str, *, group: str = "", namespace: str = "team") -> Object:
    where = f' in the namespace "{namespace}"' if namespace else " at the cluster scope"
    said = f'User "jane" cannot {verb} resource "{resource}" in API group "{group}"{where}'
    return {"stderr": f"Error from server (Forbidden): {resource} is forbidden: {said}\n", "code": 1}


FAILURE = {
    **{"attempt": 1, "role": "trainer", "pod": POD, "node": "n1", "container": "trainer"},
    **{
        "reason": "OOMKilled",
        "exitCode": 137,
        "message": "the container trainer ran out of memory: raise it",
    },
}


def sections(text: str) -> dict[str, str]:
    """What `why` says, by its headings; the first sentence by an empty one."""
    first, *rest = text.rstrip("\n").split("\n\n")
    return {"": first} | {title: body for title, _, body in (each.partition("\n") for each in rest)}


def test_the_cause_comes_first_then_what_followed_and_what_to_do(shell: Shell) -> None:
    ended = "the container trainer ran out of memory: raise it; attempt 4 was the last"
    failed = [
        condition("Ready", "False", "RestartsExhausted", ended),
        condition("Running", "False", "RestartsExhausted", ended),
        condition("RolloutReady", "False", "JobFinished", "the engines have been given back"),
        condition("Failed", "True", "RestartsExhausted", ended),
    ]
    shell.answer("grpojobs", thing=job(*failed, phase="Failed", step=16, attempt=4, lastFailure=FAILURE))
    gone = container({"terminated": {"exitCode": 137, "reason": "OOMKilled"}})
    shell.answer("pods", thing=[pod(**gone), pod("copy-3f81c2-rollout-0-i0", role="rollout")])
    shell.answer("events", thing=[])
    said = sections(shell.says("why", "copy"))
    where = f"(attempt 1, pod {POD}, node n1, container trainer, exit code 137)"
    assert said == {
        "": "copy in namespace team: Failed, step 16 of 200, attempt 4",
        "Cause": f"  OOMKilled: {FAILURE['message']} {where}",
        "What followed": f"  Failed is True: RestartsExhausted: {ended}\n"
        "  RolloutReady is False: JobFinished: the engines have been given back",
        "Pods": f"  {POD}, container trainer, ended with 137 OOMKilled",
        "What to do": said["What to do"],
    }
    assert said["What to do"].startswith("  Raise resources.limits.memory")


def test_a_job_that_waits_is_explained_by_pods_events_and_queue_as_far_as_they_may_be_read(
    shell: Shell,
) -> None:
    waits = condition("Running", "False", "ErrImagePull", "the image cannot be pulled")
    queue = {"name": "team", "workload": "copy-3f81c2"}
    waiting = job(
        waits, condition("Ready", "False", "ErrImagePull", "the image cannot be pulled"), queue=queue
    )
    shell.answer("grpojobs", thing=waiting)
    text = json.dumps({"reason": "UserError", "message": "no such column"})
    broken = [
        pod("one", conditions=[condition("PodScheduled", "False", "Unschedulable", "0/3 nodes")]),
        pod("two", **container({"waiting": {"reason": "ErrImagePull", "message": "x\x1b[31m"}})),
        pod("three", **container({"terminated": {"exitCode": 40, "message": text}})),
        pod("four", **container({"running": {}}, restartCount=2, lastState={"terminated": {"exitCode": 1}})),
        pod("five", reason="Evicted", message="low on memory"),
        pod("six", conditions=[]),
        pod("seven"),
    ]
    shell.answer("pods", thing=broken)
    elsewhere = warning(pod("other"), "FailedMount", "not ours")
    often = warning(broken[1], "Failed", "pull failed", count=7)
    shell.answer("events", "--field-selector=type=Warning", thing=[elsewhere, often])
    shell.answer("workloads", **forbidden("get", "workloads", group="kueue.x-k8s.io"))
    said = sections(shell.says("why", "grpojob/copy"))
    assert said["Cause"] == "  Running is False: ErrImagePull: the image cannot be pulled"
    assert "What followed" not in said
    assert said["Pods"].split("\n") == [
        "  one waits for a node: Unschedulable: 0/3 nodes",
        "  two, container trainer, waits: ErrImagePull: x\ufffd[31m",
        "  three, container trainer, ended with 40 UserError: no such column",
        "  four, container trainer, was started again 2 times, and before ended with 1",
        "  five has ended: Evicted: low on memory",
        "  six is not ready",
    ]
    assert said["Events"] == "  Pod two, 7 times: Failed: pull failed"
    assert said["Not looked at"] == (
        "  jane may not get workloads in namespace team: "
        "Kueue's ClusterRole kueue-batch-user-role has that right"
    )


def test_what_kueue_says_is_part_of_the_chain(shell: Shell) -> None:
    queued = condition("Suspended", "True", "Queued", "queue team: position 2")
    shell.answer("grpojobs", thing=job(queued, phase="Queued", queue={"name": "team", "workload": "w"}))
    short = condition("QuotaReserved", "False", "Pending", "insufficient quota for nvidia.com/gpu")
    shell.answer("workloads", "w", thing={"kind": "Workload", "status": {"conditions": [short]}})
    shell.answer("get", thing=[])
    said = sections(shell.says("why", "copy"))
    assert said["Cause"] == "  Suspended is True: Queued: queue team: position 2"
    assert "insufficient quota for nvidia.com/gpu" in said["What followed"]
    assert said["What to do"].startswith("  Nothing: Kueue admits it in turn.")


def test_a_failure_that_is_over_is_named_as_that_and_nothing_wrong_is_said_so(shell: Shell) -> None:
    late = condition("RolloutReady", "False", "EnginesStarting", "1/2 engines have been admitted")
    shell.answer("grpojobs", "late", thing=job(late, attempt=2, lastFailure=FAILURE))
    shell.answer("grpojobs", "good", thing=job(condition("Ready", "True", "Training"), lastFailure=FAILURE))
    shell.answer("grpojobs", "fresh", thing={**job(), "status": {"observedGeneration": -1}})
    shell.answer("grpojobs", "foreign", thing=job(spec={"managedBy": "a.b/c"}))
    done = [condition(kind, "True", "Completed") for kind in ("Complete", "Finished", "Ready")]
    learned = condition("NoLearningSignal", "True", "NoReward", "nothing was learned")
    shell.answer("grpojobs", "done", thing=job(*done, condition("Running", "False", "Completed"), learned))
    shell.answer("get", thing=[])
    said = sections(shell.says("why", "late"))
    assert said["Cause"].startswith("  RolloutReady is False") and said["What followed"].startswith(
        "  earlier: OOM"
    )
    assert sections(shell.says("why", "good")).keys() == {"", "What to do"}
    assert "no operator has looked at the job" in sections(shell.says("why", "fresh"))["Cause"]
    assert "a.b/c is responsible" in sections(shell.says("why", "foreign"))["Cause"]
    said = sections(shell.says("why", "done"))
    assert (
        said["Cause"] == "  NoLearningSignal is True: NoReward: nothing was learned"
        and "What followed" not in said
    )


def test_every_condition_that_can_be_wrong_is_looked_at(plugin: ModuleType) -> None:
    assert plugin.GOOD.keys() == {kind.value for kind in ConditionType} - {"Complete", "Finished"}
    assert plugin.PORT == TRAINER_PORT
    known = {reason.value for reason in Reason}
    named = {"Unschedulable", "ErrImagePull", "StartError", "CreateContainerConfigError", "CrashLoopBackOff"}
    named |= {"OOMKilled", "FailedMount", "FailedAttachVolume", "Evicted"}
    assert plugin.WHAT_TO_DO.keys() - known == named, "reasons of Kubernetes"


def with_gpus(thing: Object, count: int) -> Object:
    limits = {"resources": {"limits": {"nvidia.com/gpu": str(count), "memory": "4Gi"}}}
    return {**thing, "spec": {"nodeName": "n1", "containers": [{"name": "x", **limits}, {"name": "sidecar"}]}}


def test_the_table_has_speed_and_the_gpus_that_do_nothing(plugin: ModuleType) -> None:
    begun = f"{NOW - timedelta(seconds=100):%Y-%m-%dT%H:%M:%SZ}"
    ready = condition("Ready", "True", "Training")
    one = job(ready, step=40, progress="40/200", reward="0.5", tokensPerSecond="99", startTime=begun)
    one["status"]["suspendedSeconds"] = 20
    pods = [
        with_gpus(pod(), 2),
        with_gpus(pod("engine-0", role="rollout"), 4),
        with_gpus(pod("engine-1", role="rollout", conditions=[]), 4),
        with_gpus(pod("ended", role="rollout", phase="Failed"), 8),
        pod("waits for a node"),
    ]
    two = job(name="two", phase="Pending")
    resumed = {"step": 500, "startTime": begun, "resumedFrom": {"source": "pvc://runs/old", "step": 499}}
    three = job(name="three", spec={"resumeFrom": {"job": "old"}}, **resumed)
    four = job(name="four", spec={"resumeFrom": {"job": "old", "load": "Weights"}}, **resumed)
    looks: Any = collections.defaultdict(collections.deque)
    jobs = [one, two, three, four]
    rows = [line.split() for line in plugin.table_of(jobs, pods, looks, NOW).splitlines()]
    assert rows[1] == ["team", "copy", "Running", "40/200", "0.5", "0.5", "99", "10", "4"]
    assert rows[2] == ["team", "two", "Pending", "-", "-", "-", "-", "-", "-"]
    assert rows[3][4] == "0.01", "without the steps of the job that it resumes"
    assert rows[4][4] == "5", "with the weights alone it counts from 0"

    later = {**one, "status": {**one["status"], "step": 46, "conditions": []}}
    (_, row) = plugin.table_of([later], pods, looks, NOW + timedelta(seconds=2)).splitlines()
    assert row.split()[-1] == "6", "the trainer makes no steps"


def speeds(plugin: ModuleType, steps: Callable[[int], int], *, until: int, **status: Any) -> list[str | None]:
    """What a watch says of a job that began 100 s before, every two seconds; `steps` are by second."""
    begun = f"{NOW - timedelta(seconds=100):%Y-%m-%dT%H:%M:%SZ}"
    looks: Any = collections.deque()
    return [
        plugin.speed_of(
            job(step=steps(second), startTime=begun, **status), looks, NOW + timedelta(seconds=second)
        )
        for second in range(0, until + 1, 2)
    ]


def test_a_watch_shows_the_speed_of_the_last_minute_once_it_has_lasted_one(plugin: ModuleType) -> None:
    stands = speeds(plugin, lambda second: 40, until=600)
    assert (stands[0], stands[29]) == ("0.4", f"{40 / 158:.3g}"), "since the start"
    assert set(stands[30:]) == {"0"}
    stops = speeds(plugin, lambda second: 40 + 3 * min(second, 100), until=200)
    assert stops[30] == f"{(40 + 3 * 60) / 160:.3g}"
    assert set(stops[31:51]) == {"3"}
    assert stops[65] == f"{(3 * 30 + 1) / 60:.3g}", "the step that takes longer counts"
    assert set(stops[80:]) == {"0"}
    begins_anew = speeds(plugin, lambda second: 40 + second if second < 80 else second - 80, until=150)
    assert begins_anew[39:42] == ["1", None, f"{2 / 182:.3g}"] and begins_anew[-1] == "1"
    ended = {"completionTime": f"{NOW:%Y-%m-%dT%H:%M:%SZ}"}
    assert set(speeds(plugin, lambda second: 40, until=600, **ended)) == {"0.4"}


@pytest.mark.parametrize("took", [20, 40, 90, 300])
def test_a_watch_that_begins_before_the_end_of_a_step_shows_how_long_steps_take(
    plugin: ModuleType, took: int
) -> None:
    said = speeds(plugin, lambda second: 2 + (second + took - 3) // took, until=1500)
    seen = next(index for index, each in enumerate(said) if 2 * index > 62 and each != "0")
    assert 2 * seen == max(64, 4 + took) and set(said[31:seen]) <= {"0", said[31]}
    assert {float(each or 0) for each in said[seen:]} == {float(f"{1 / took:.3g}")}
    assert said[31] == f"{(2 + (62 + took - 3) // took) / 162:.3g}", "since the start"
    stands = speeds(plugin, lambda second: 2 + (min(second, 900) + took - 3) // took, until=2400)
    assert stands[-1] == "0"


def test_a_watch_ends_with_ctrl_c_without_a_word(shell: Shell) -> None:
    shell.answer("grpojobs", thing=[job()])
    shell.answer("pods", thing=[])
    with shell.start("top", "--watch", "-A") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("NAMESPACE")
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (130, "")
    assert all("--all-namespaces" in call for call in shell.calls)


def test_logs_are_those_of_a_role_and_an_attempt_or_it_is_said_which_there_are(shell: Shell) -> None:
    shell.answer("grpojobs", thing=job())
    shell.answer("pods", "grpo.dev/attempt=7", thing=[])
    shell.answer("pods", thing=[pod(), pod("engine", role="rollout")])
    shell.answer("logs", stdout="[pod/x] a line\n")
    assert shell.says("logs", "copy", "--role", "trainer", "--attempt", "1", "-f") == "[pod/x] a line\n"
    asked = shell.calls[-1]
    assert "--selector=grpo.dev/job-uid=uid-of-copy,grpo.dev/role=trainer,grpo.dev/attempt=1" in asked
    assert {"logs", "--namespace=team", "--follow", "--prefix", "--all-containers"} <= set(asked)
    told = shell.is_told("logs", "copy", "--attempt", "7")
    assert told == "copy has no such pod: there are pods of rollout 1, trainer 1"


class Served:
    """An HTTP server in the place of the forwarded port."""

    def __init__(self, status: int, body: str) -> None:
        self.asked: list[str] = []
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                served.asked.append(self.path)
                if status == 0:
                    return  # the connection ends without an answer
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, format: str, *args: object) -> None:
                """Nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def served(request: pytest.FixtureRequest, shell: Shell) -> Iterator[Served]:
    made = Served(*request.param)
    shell.answer("grpojobs", thing=job())
    shell.answer("pods", "grpo.dev/node-index=0", thing=[pod("ended", phase="Succeeded"), pod()])
    shell.answer(
        "port-forward", f"pod/{POD}", ":8780", "--address=127.0.0.1", port=made.server.server_address[1]
    )
    yield made
    made.close()
    assert (shell.folder / "ended").exists(), "the port-forward was ended"


@pytest.mark.parametrize("served", [(200, "step 2: \x1b[31mblue\n")], indirect=True)
def test_samples_come_through_a_forwarded_port_as_plain_text(shell: Shell, served: Served) -> None:
    assert (
        shell.says("samples", "copy", "--step", "2", "--order", "mixed", "--eval")
        == "step 2: \ufffd[31mblue\n"
    )
    assert served.asked == ["/samples?step=2&order=mixed&eval=1"]


@pytest.mark.parametrize("served", [(200, "<html>")], indirect=True)
def test_a_report_is_a_file(shell: Shell, served: Served) -> None:
    assert shell.says("report", "copy") == "copy-report.html\n"
    assert (shell.folder / "copy-report.html").read_text() == "<html>"
    assert "cannot be written (No such file or directory)" in shell.is_told(
        "report", "copy", "-o", "no/where.html"
    )


@pytest.mark.parametrize(
    ("served", "told"),
    [
        ((404, "no step is finished in /output\n"), "no step is finished in /output"),
        ((404, "there is only /progress\n"), "the runtime image of copy is older than this command"),
        ((0, ""), f"pod {POD} broke the answer off"),
    ],
    indirect=["served"],
)
def test_what_the_pod_answers_instead_is_said(shell: Shell, served: Served, told: str) -> None:
    assert shell.is_told("report", "copy").startswith(told)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_port_forward_too(shell: Shell, number: signal.Signals) -> None:
    waiting = threading.Event()
    held = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            waiting.set()
            held.wait(60)

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    shell.answer("grpojobs", thing=job())
    shell.answer("pods", thing=[pod()])
    shell.answer("port-forward", port=server.server_address[1])
    with shell.start("samples", "copy") as process:
        assert waiting.wait(60)
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
    held.set()
    server.shutdown()
    server.server_close()
    assert (process.returncode, error) == (128 + number, "")
    assert (shell.folder / "ended").exists()


@pytest.mark.parametrize(
    ("spec", "kept"),
    [
        ({"checkpoint": {"claimName": "runs"}}, "a pod that mounts claim runs reads its files"),
        ({}, "without checkpoint.claimName nothing is kept"),
    ],
)
def test_a_job_without_a_running_trainer_serves_nothing_and_it_is_said_where_its_files_are(
    shell: Shell, spec: Object, kept: str
) -> None:
    shell.answer("grpojobs", thing=job(spec=spec, phase="Succeeded"))
    shell.answer("pods", thing=[pod(phase="Succeeded")])
    told = shell.is_told("report", "copy")
    assert told.startswith("no first trainer pod of copy runs (Succeeded)") and kept in told


def test_a_bundle_has_no_credentials_and_says_what_it_lacks(shell: Shell) -> None:
    token, password = "hf_" + "a1" * 12, PASSWORD
    own = job(spec={"hub": {"tokenSecret": "hub"}})
    own["metadata"]["annotations"] = {
        "last-applied": json.dumps({"env": [{"name": "API_KEY", "value": password}]})
    }
    shell.answer("grpojobs", thing=own)
    variables = [{"name": "WANDB_API_KEY", "value": password}, {"name": "STEPS", "value": "200"}]
    ours = pod(**container({"running": {}}, restartCount=1))
    ours["spec"]["containers"][0] |= {
        "env": variables,
        "args": [f"--api-key={password}", "--steps=7", "--token", password],
    }
    shell.answer("get", "pods", thing=[ours])
    shell.answer("events", thing=[warning(own, "Failed", f"https://me:{password}@host/x refused")])
    code = f'TOKEN = "{password}"\nmax_tokens = 128\nclient(authorization="Bearer {password}")\n'
    shell.answer(
        "configmaps", thing=[{"data": {"reward.py": code, "run.json": json.dumps({"token": token})}}]
    )
    shell.answer("services", thing=[])
    shell.answer("networkpolicies", **forbidden("list", "networkpolicies", group="networking.k8s.io"))
    shell.answer("deployments", **forbidden("list", "deployments", group="apps", namespace=""))
    shell.answer("version", stdout="Server Version: v1.34.4\n")
    shell.answer("logs", "--previous", stdout="before\n")
    shell.answer("logs", "--tail=2000", "--limit-bytes=1000000", stdout=f"downloading with {token}\n")
    said = shell.says("diagnose", "copy", "--output", "copy.tar.gz")
    assert (shell.folder / "copy.tar.gz").stat().st_mode & 0o777 == 0o600
    with tarfile.open(shell.folder / "copy.tar.gz") as bundle:
        files = {each.name.removeprefix("copy/"): bundle.extractfile(each).read().decode() for each in bundle}  # type: ignore[union-attr]
    assert files.keys() == {
        *("README.txt", "configmaps.json", "events.json", "job.json", "pods.json", "version.txt", "why.txt"),
        *(f"logs/{POD}-trainer.log", f"logs/{POD}-trainer-before.log"),
    }
    everything = "".join(files.values())
    assert token not in everything and password not in everything
    assert json.loads(files["job.json"])["spec"]["hub"]["tokenSecret"] == "hub", (
        "the name of a Secret is none"
    )
    assert "max_tokens = 128" in files["configmaps.json"] and "--steps=7" in files["pods.json"]
    assert files["README.txt"] in said and said.endswith("\ncopy.tar.gz\n")
    assert "10 values that look like credentials are hidden" in said
    assert (
        "Not there: jane may not list networkpolicies in namespace team: the ClusterRole view has that right"
        in said
    )
    assert "Not there: jane may not list deployments in the whole cluster" in said
    assert not any("secrets" in call for call in shell.calls)


VALUE = "correcthorse12345"
SECRET_VARIABLES = [
    *("DB_PASS", "MYSQL_PWD", "SSH_PASSPHRASE", "OPENAI_KEY", "WANDB_KEY", "HF_TOKEN_READ", "HF_TOKENS"),
    *("AWS_SECRET_ACCESS_KEY_PROD", "HTTP_COOKIE", "REDISCLI_AUTH", "GCP_CREDENTIALS_JSON", "TOKEN_2"),
]
OPEN_VARIABLES = [
    *("TOKENIZERS_PARALLELISM", "HF_TOKEN_PATH", "GRPO_TOKENS_DIR", "GRPO_FOLLOW_TOKEN_FILE"),
    *("DB_SECRET_NAME", "MONKEY_MODE", "COMPASS_URL", "BYPASS_CACHE", "AUTHOR_OF_IT", "PWD", "OLDPWD"),
]


@pytest.mark.parametrize("name", [*SECRET_VARIABLES, "PGPASSWORD", "dbPass", "db-auth", "api.key", "SECRET"])
def test_the_value_of_a_variable_that_is_named_like_a_credential_is_hidden(
    plugin: ModuleType, name: str
) -> None:
    hidden = plugin.Hidden()
    found = hidden.in_value({"env": [{"name": name, "value": VALUE}]})
    assert found == {"env": [{"name": name, "value": "[hidden]"}]} and hidden.count == 1


@pytest.mark.parametrize("name", SECRET_VARIABLES)
@pytest.mark.parametrize(
    "form", ["{}={}", "export {}='{}'", "environ({{'{}': '{}'}})", 'x {{\\"{}\\": \\"{}\\"}}']
)
def test_a_variable_is_hidden_in_a_text_and_as_a_field(plugin: ModuleType, form: str, name: str) -> None:
    hidden = plugin.Hidden()
    said = hidden.in_value({"script": form.format(name, VALUE), name: VALUE})
    assert said == {"script": form.format(name, "[hidden]"), name: "[hidden]"}
    assert hidden.count == 2


@pytest.mark.parametrize("name", OPEN_VARIABLES)
def test_a_variable_that_has_no_secret_stays_readable(plugin: ModuleType, name: str) -> None:
    thing = {"env": [{"name": name, "value": VALUE}], name: VALUE, "args": [f"{name}={VALUE}"]}
    assert plugin.Hidden().in_value(thing) == thing


@pytest.mark.parametrize("flag", ["--db-pass", "--openai-key", "--token", "-hf_token", "--key", "--pass"])
def test_an_argument_that_is_named_like_a_credential_is_hidden(plugin: ModuleType, flag: str) -> None:
    arguments = ["serve", "--max-tokens", "4096", flag, VALUE, f"-{flag}={VALUE}", "--tokenizer", VALUE]
    said = plugin.Hidden().in_value({"args": arguments})["args"]
    assert said == [*arguments[:4], "[hidden]", f"-{flag}=[hidden]", *arguments[6:]]


def test_names_of_secrets_and_numbers_of_tokens_stay_readable(plugin: ModuleType) -> None:
    counts = ["GRPO_MICRO_BATCH_TOKENS", "MAX_TOKENS", "num_tokens", "VLLM_MAX_NUM_BATCHED_TOKENS"]
    key = {"secretKeyRef": {"name": "hub", "key": "token"}}
    thing = {
        "env": [
            *({"name": name, "value": "16384"} for name in counts),
            {"name": "HF_TOKEN", "valueFrom": key},
        ],
        "topologyKey": "kubernetes.io/hostname",
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "volumes": [{"secret": {"secretName": "the-hub-of-a-team"}}],
        "hub": {"tokenSecret": "the-hub-of-a-team"},
        "imagePullSecrets": [{"name": "the-registry"}],
        "status": {"tokensPerSecond": "12345678", "maxTokens": "12345678", "tokenizer": "a-long-name/of-it"},
        "log": "max_tokens=12345678 num_tokens: 12345678 tokenizer=a-long-name key=lambda_of_it",
    }
    assert plugin.Hidden().in_value(thing) == thing


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Basic {}",
        '{{"error": "{{\\"token\\": \\"{}\\"}}"}} of a line of JSON',
        "MINIO_SECRET_KEY={}",
        "redis://:{}@cache.example.test/0",
        "vllm serve --api-key {} --port 8000",
    ],
)
def test_a_credential_is_hidden_in_each_of_its_forms(text: str, shell: Shell) -> None:
    shell.answer("grpojobs", thing=job())
    shell.answer("get", "pods", thing=[pod(**container({"running": {}}))])
    for kind in ("events", "configmaps", "services", "networkpolicies", "deployments", "version"):
        shell.answer(kind, thing=[])
    shell.answer("logs", stdout=f"{text.format(PASSWORD)}\n")
    assert "1 values that look like credentials are hidden" in shell.says(
        "diagnose", "copy", "-o", "b.tar.gz"
    )
    with tarfile.open(shell.folder / "b.tar.gz") as bundle:
        log = bundle.extractfile(f"b/logs/{POD}-trainer.log").read().decode()  # type: ignore[union-attr]
    assert PASSWORD not in log and "[hidden]" in log


def patches(shell: Shell) -> list[str]:
    return [word.partition("=")[2] for call in shell.calls for word in call if word.startswith("--patch=")]


TRUE, FALSE = '{"spec": {"suspend": true}}', '{"spec": {"suspend": false}}'


@pytest.mark.parametrize(
    ("spec", "suspension", "written"),
    [
        ({"suspend": True}, {"reason": "Suspended"}, [FALSE]),
        ({}, {"reason": "SuspendedByRule"}, [FALSE]),
        ({"suspend": False}, {"reason": "SuspendedByRule", "specSuspend": False}, [TRUE, FALSE]),
        ({}, {"reason": "SuspendedByRule", "until": "2026-11-29T11:00:00Z"}, []),
        ({}, {"reason": "Queued"}, []),
    ],
    ids=["by a person", "by a rule", "by a rule, where the field is false", "before", "by a queue"],
)
def test_resume_ends_what_suspends_a_job(
    shell: Shell, spec: Object, suspension: Object, written: list[str]
) -> None:
    shell.answer("get", "grpojobs", thing=job(spec=spec, suspension=suspension))
    shell.answer("patch", "grpojobs", "--type=merge")
    shell.answer("wait", "grpojobs.grpo.dev/copy")
    said = shell.says("resume", "copy")
    assert patches(shell) == written
    assert ("continues as its next attempt" if written else "nobody has suspended copy") in said
    assert any(call[0] == "wait" for call in shell.calls) == (len(written) == 2)


def test_suspend_asks_for_the_right_to_patch_and_a_job_that_has_ended_is_left_alone(shell: Shell) -> None:
    shell.answer("get", "ended", thing=job(condition("Finished", "True", "Completed"), phase="Succeeded"))
    shell.answer("get", "grpojobs", thing=job())
    shell.answer("patch", **forbidden("patch", "grpojobs", group="grpo.dev"))
    assert shell.is_told("suspend", "copy") == (
        "jane may not patch grpojobs in namespace team: the ClusterRole edit has that right, "
        "unless the operator's chart was installed with userRoles.create=false"
    )
    assert patches(shell) == [TRUE]
    assert "has ended (Succeeded): a new job with resumeFrom" in shell.is_told("suspend", "ended")


def test_a_manifest_is_checked_and_not_stored(shell: Shell) -> None:
    shell.answer("good.yaml", stdout="grpojob.grpo.dev/copy created (server dry run)\n")
    refusal = (
        'The GRPOJob "copy" is invalid: \n* spec.algorithm.steps: Invalid value: 0: must be at least 1\n'
    )
    shell.answer("bad.yaml", stderr=refusal, code=1)
    assert "copy created in a dry run: the API server takes it" in shell.says("validate", "good.yaml")
    assert "* spec.algorithm.steps" in shell.is_told("validate", "bad.yaml")
    assert all("--dry-run=server" in call for call in shell.calls)


def test_options_of_kubectl_reach_every_call_wherever_they_stand(shell: Shell) -> None:
    shell.answer("get", "grpojobs", thing=job())
    shell.answer("get", thing=[])
    shell.says("-n", "team", "why", "--context=prod", "copy", "--as", "jane", "--insecure-skip-tls-verify")
    own = ["-n", "team", "--context=prod", "--as", "jane", "--insecure-skip-tls-verify"]
    assert len(shell.calls) >= 3 and all(call[-len(own) :] == own for call in shell.calls)


@pytest.mark.parametrize(
    ("stderr", "told"),
    [
        ('Error from server (NotFound): grpojobs.grpo.dev "copy" not found', "there is no GRPOJob copy here"),
        ('error: the server doesn\'t have a resource type "grpojobs"', "this cluster knows no GRPOJobs"),
        ('error: context "x" does not exist', 'context "x" does not exist'),
        ("", "kubectl failed and said nothing"),
    ],
)
def test_a_failure_of_kubectl_is_a_sentence(shell: Shell, stderr: str, told: str) -> None:
    shell.answer("get", stderr=stderr, code=1)
    assert shell.is_told("why", "copy").startswith(told)


def test_without_kubectl_it_says_so(shell: Shell) -> None:
    (shell.folder / "kubectl").unlink()
    assert shell.is_told("top").startswith("kubectl is not on PATH")


def test_a_wrong_command_line_ends_with_2_and_a_closed_pipe_quietly(shell: Shell) -> None:
    assert shell.run("wy", "copy")[0] == 2
    shell.answer("grpojobs", thing=job())
    shell.answer("get", thing=[])
    read, write = os.pipe()
    os.close(read)
    (shell.folder / "answers.json").write_text(json.dumps(shell.answers))
    environment = {"PATH": f"{shell.folder}:{Path(sys.executable).parent}"}
    command = [sys.executable, str(PLUGIN), "why", "copy"]
    streams = {"stdout": write, "stderr": subprocess.PIPE}
    done = subprocess.run(command, env=environment, timeout=60, check=False, **streams)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_it_is_one_program_for_python_3_9_without_a_package(plugin: ModuleType) -> None:
    tree = ast.parse(PLUGIN.read_text(), feature_version=(3, 9))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in imports if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names
    assert os.access(PLUGIN, os.X_OK) and PLUGIN.read_text().startswith("#!/usr/bin/env python3\n")


@pytest.mark.parametrize(
    "command", ["why", "top", "logs", "samples", "report", "diagnose", "suspend", "resume", "validate"]
)
def test_the_help_of_each_command_has_an_example(plugin: ModuleType, command: str) -> None:
    function, _ = plugin.COMMANDS[command]
    assert f"\n\n  kubectl grpo {command}" in plugin.help_of(function)

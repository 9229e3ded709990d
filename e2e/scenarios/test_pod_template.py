"""What podTemplate and the claims of a job say arrives on real pods and in the processes of the job."""

import textwrap
from pathlib import Path

import pytest

from grpo_demo.follow import condition
from grpo_scenarios.faults import volume
from grpo_scenarios.namespace import Namespace, Object, copy_job

pytestmark = pytest.mark.cluster

PRIORITY_CLASS = "grpo-test-high"
CHART_VALUES = {
    "podTemplates.serviceAccounts": "{cloud-reader}",
    "podTemplates.labels": "{team}",
    "podTemplates.annotations": "{example.test/}",
    "podTemplates.priorityClasses": f"{{{PRIORITY_CLASS}}}",
    "podTemplates.hostNetwork": "true",
}
REWARD = """
    import os
    from pathlib import Path

    SHM = os.statvfs("/dev/shm")
    FOUND = {
        "env": os.environ.get("NCCL_DEBUG") == "WARN",
        "own env": os.environ.get("NODE") not in (None, ""),
        "envFrom": os.environ.get("NCCL_SOCKET_IFNAME") == "eth0",
        "config map": Path("/mnt/words/greeting").read_text() == "hello",
        "scratch": os.access("/mnt/scratch", os.W_OK),
        "shared memory": SHM.f_blocks * SHM.f_frsize == 192 << 20,
        "no token": not Path("/var/run/secrets/kubernetes.io").exists(),
    }

    def score(completions, **columns):
        missing = [what for what, is_there in FOUND.items() if not is_there]
        if missing:
            raise RuntimeError(f"missing: {missing}")
        return [1.0] * len(completions)
"""


@pytest.mark.matrix
def test_what_the_template_adds_is_there_in_every_pod_and_process(namespace: Namespace) -> None:
    priority_class = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": PRIORITY_CLASS},
        "value": 1000,
    }
    template = {
        "metadata": {"labels": {"team": "rl"}, "annotations": {"example.test/network": "fast"}},
        "spec": {
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]}
                        ]
                    }
                }
            },
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "topologySpreadConstraints": [
                {
                    "maxSkew": 1,
                    "topologyKey": "kubernetes.io/hostname",
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "labelSelector": {"matchLabels": {"team": "rl"}},
                }
            ],
            "priorityClassName": PRIORITY_CLASS,
            "serviceAccountName": "cloud-reader",
            "volumes": [
                {"name": "words", "configMap": {"name": "words"}},
                {"name": "scratch", "emptyDir": {"sizeLimit": "16Mi"}},
            ],
            "terminationGracePeriodSeconds": 75,
        },
        "container": {
            "env": [
                {"name": "NCCL_DEBUG", "value": "WARN"},
                {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            ],
            "envFrom": [{"configMapRef": {"name": "network"}}],
            "volumeMounts": [
                {"name": "words", "mountPath": "/mnt/words", "readOnly": True},
                {"name": "scratch", "mountPath": "/mnt/scratch"},
            ],
        },
        "sharedMemory": "192Mi",
    }
    job = copy_job(
        "template",
        algorithm={"steps": 3},
        trainer={"processesPerNode": 1, "podTemplate": template},
        rollout={"replicas": 1, "podTemplate": template},
    )
    job["spec"]["rewards"] = [
        {
            "name": "found",
            "configMap": {"name": "reward", "key": "score.py", "function": "score"},
            "maxFailureShare": 0,
        }
    ]
    namespace.apply(
        priority_class,
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "cloud-reader"}},
        _config_map("network", NCCL_SOCKET_IFNAME="eth0"),
        _config_map("words", greeting="hello"),
        _config_map("reward", **{"score.py": textwrap.dedent(REWARD)}),
        job,
    )
    engine = namespace.wait_until(
        lambda: next(iter(namespace.pods_of("template", "rollout")), None),
        "a rollout pod",
        timeout_seconds=180,
    )
    (trainer,) = namespace.pods_of("template", "trainer")
    status = namespace.wait_for_finish("template")

    assert condition(namespace.job("template"), "Complete") == "True", namespace.describe()
    assert float(status["reward"]) == 1
    for pod in (trainer, engine):
        spec = pod["spec"]
        assert pod["metadata"]["labels"]["team"] == "rl"
        assert pod["metadata"]["annotations"]["example.test/network"] == "fast"
        for field in ("affinity", "topologySpreadConstraints", "priorityClassName", "serviceAccountName"):
            assert spec[field] == template["spec"][field], field
        assert (spec["priority"], spec["terminationGracePeriodSeconds"]) == (1000, 75)
        assert template["spec"]["tolerations"][0] in spec["tolerations"]


@pytest.mark.parametrize(
    ("asked", "reason"),
    [({"serviceAccountName": "another"}, "NotPermitted"), ({"hostNetwork": True}, "PodSecurityRefused")],
)
def test_what_the_operator_or_the_namespace_does_not_allow_is_said_on_the_object(
    namespace: Namespace, asked: dict[str, object], reason: str
) -> None:
    name = reason.lower()
    namespace.apply(copy_job(name, trainer={"podTemplate": {"spec": asked}}))

    def is_said() -> bool:
        return any(found["reason"] == reason for found in namespace.status(name).get("conditions", ()))

    namespace.wait_until(is_said, f"{reason} on the job", timeout_seconds=60)
    assert namespace.pods_of(name, "trainer") == []
    namespace.kubectl("delete", "grpojob", name)


@pytest.mark.matrix
def test_a_job_trains_on_the_network_of_its_node(namespace: Namespace) -> None:
    label = "pod-security.kubernetes.io/enforce=privileged"
    namespace.target.run_kubectl("label", "--overwrite", "namespace", namespace.name, label)
    template = {"podTemplate": {"spec": {"hostNetwork": True}}}
    job = copy_job(
        "host",
        algorithm={"steps": 3},
        trainer={"processesPerNode": 1, **template},
        rollout={"replicas": 1, **template},
    )
    namespace.apply(job)

    def addressed() -> list[Object] | None:
        pods = [*namespace.pods_of("host", "trainer"), *namespace.pods_of("host", "rollout")]
        return pods if len(pods) == 2 and all(pod["status"].get("podIP") for pod in pods) else None

    # before the job ends, which gives its engine back
    for pod in namespace.wait_until(addressed, "both pods with an address", timeout_seconds=180):
        assert pod["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"
        assert pod["status"]["podIP"] == pod["status"]["hostIP"]
        (container,) = pod["spec"]["containers"]
        # with which the scheduler gives a node one pod of each port
        assert all(port["hostPort"] == port["containerPort"] for port in container["ports"])
    namespace.wait_for_finish("host")
    assert condition(namespace.job("host"), "Complete") == "True", namespace.describe()


COMPILING_REWARD = """
    from pathlib import Path

    def score(completions, **columns):
        Path("/cache/compiled/made").write_text("by the job")
        return [1.0] * len(completions)
"""


@pytest.mark.matrix
def test_what_is_compiled_is_in_a_folder_of_the_job_on_its_claim(
    namespace: Namespace, tmp_path: Path
) -> None:
    job = copy_job(
        "compiled",
        algorithm={"steps": 2},
        trainer={"processesPerNode": 1},
        engine={"compiledCacheClaim": "compiled"},
    )
    del job["spec"]["rollout"]
    job["spec"]["rewards"] = [
        {"name": "made", "configMap": {"name": "compiling", "key": "score.py", "function": "score"}}
    ]
    with volume(namespace, "compiled", path=tmp_path):
        namespace.apply(_config_map("compiling", **{"score.py": textwrap.dedent(COMPILING_REWARD)}), job)
        namespace.wait_for_finish("compiled")
        assert condition(namespace.job("compiled"), "Complete") == "True", namespace.describe()
        [made] = tmp_path.glob("*/made")
        assert (made.parent.name.startswith("compiled-"), made.read_text()) == (True, "by the job")
        namespace.kubectl("delete", "grpojob", "compiled")


def _config_map(name: str, **data: str) -> dict:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}

"""The chart without a cluster: the values it refuses, and what holds for all values."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from grpo_operator.children.gangs import GANG_SCHEDULERS
from grpo_operator.cli import parse
from grpo_operator.settings import MIN_HOLD_BACK_SECONDS

from .helm import CHART, VALUES, chart_values, helm, objects, schema

pytestmark = pytest.mark.apiserver

FILES = sorted(VALUES.glob("*.yaml"))


def paths(values: dict[str, Any], at: str = "") -> Iterator[str]:
    """The path of every value. A map that a person fills freely, such as limits, is one value."""
    for name, value in values.items():
        where = f"{at}.{name}".lstrip(".")
        if isinstance(value, dict) and name not in {"requests", "limits"} and value:
            yield from paths(value, where)
        else:
            yield where


def described(part: dict[str, Any], at: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """The path of every value of the schema, with the schema of that value."""
    for name, value in part.get("properties", {}).items():
        where = f"{at}.{name}".lstrip(".")
        if value.get("additionalProperties") is False:
            yield from described(value, where)
        else:
            yield where, value


def test_helm_lint_finds_nothing():
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout and "ERROR" not in done.stdout


def test_the_schema_has_exactly_the_values_of_the_chart_and_describes_each():
    known = dict(described(schema()))
    free = {"affinity", "nodeSelector", "podLabels", "podAnnotations"}
    assert known.keys() - {"global"} == set(paths(chart_values()))
    assert free <= known.keys()
    assert all(part.get("description", "").endswith(".") for part in known.values())


def test_the_values_that_set_all_options_set_every_one_of_them_to_something_else():
    chosen = yaml.safe_load((VALUES / "all-options.yaml").read_text())

    def at(values: Any, path: str) -> Any:
        for name in path.split("."):
            values = values[name]
        return values

    same = [path for path in paths(chart_values()) if at(chosen, path) == at(chart_values(), path)]
    # It names two namespaces, which excludes watching all of them, or those with some labels.
    assert same == ["watch.allNamespaces", "watch.namespaceSelector"]


def test_the_shortest_time_without_pods_is_the_operators():
    assert schema()["properties"]["giveBack"]["properties"]["forSeconds"]["minimum"] == MIN_HOLD_BACK_SECONDS


def test_the_operator_gets_rights_on_the_pod_groups_that_the_values_name_and_on_no_others():
    def rights(*gangs: str) -> dict[str, set[str]]:
        made = objects("--set-json", f"gangs={json.dumps(gangs)}", "--set", "userRoles.create=false")
        rules = [rule for item in made for rule in item.get("rules", ()) if "podgroups" in rule["resources"]]
        return {group: set(rule["verbs"]) for rule in rules for group in rule["apiGroups"]}

    assert rights() == {}
    for gang, scheduler in GANG_SCHEDULERS.items():
        wakes = {"patch"} if scheduler.wake_seconds else set()
        assert rights(gang.value) == {scheduler.kind.group: {"get", "list", "create", "delete", *wakes}}
    assert len(rights(*(gang.value for gang in GANG_SCHEDULERS))) == len(GANG_SCHEDULERS)
    assert schema()["properties"]["gangs"]["items"]["enum"] == [gang.value for gang in GANG_SCHEDULERS]


@pytest.mark.parametrize("scope", [(), ("--set", "watch.allNamespaces=true")])
@pytest.mark.parametrize("may_delete", [True, False])
def test_the_operator_may_delete_jobs_unless_the_values_say_no(scope: tuple[str, ...], *, may_delete: bool):
    chosen = () if may_delete else ("--set", "deleteExpiredJobs=false")
    made = objects(*scope, *chosen, "--set", "userRoles.create=false")
    rules = [rule for item in made for rule in item.get("rules", ()) if "grpojobs" in rule["resources"]]
    assert rules[0]["verbs"] == ["get", "list", "watch", *(["delete"] if may_delete else [])]
    assert len(rules) == 1


@pytest.mark.parametrize("scope", [(), ("--set", "watch.allNamespaces=true")])
def test_the_operator_gets_rights_of_kueue_only_where_it_is_switched_on(scope: tuple[str, ...]):
    def rights(*arguments: str) -> dict[tuple[str, str], set[str]]:
        made = objects(*scope, *arguments, "--set", "userRoles.create=false")
        return {
            (item["kind"], resource): set(rule["verbs"])
            for item in made
            for rule in item.get("rules", ())
            if rule["apiGroups"] == ["kueue.x-k8s.io"]
            for resource in rule["resources"]
        }

    assert rights() == {}
    kind = "ClusterRole" if scope else "Role"
    assert rights("--set", "kueue.enabled=true") == {
        (kind, "workloads"): {"get", "list", "watch", "create", "delete"},
        (kind, "workloads/status"): {"patch"},
        ("ClusterRole", "resourceflavors"): {"get"},
        ("ClusterRole", "workloadpriorityclasses"): {"get"},
    }


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("watch.allNamespace=true", "at '/watch': additional properties 'allNamespace' not allowed"),
        ("replicas=2", "additional properties 'replicas' not allowed"),
        ("replicaCount=two", "at '/replicaCount': got string, want integer"),
        ("replicaCount=-1", "at '/replicaCount': minimum"),
        ("log.level=trace", "at '/log/level': value must be one of 'debug', 'info', 'warning'"),
        ("image.digest=latest", "at '/image/digest': 'latest' does not match pattern"),
        ("runtimeImage=", "at '/runtimeImage'"),
        ("watch.namespaces={Team_A}", "at '/watch/namespaces/0': 'Team_A' does not match pattern"),
        ("imagePullSecrets[0]=registry", "at '/imagePullSecrets/0': got string, want object"),
        ("pollSeconds=0", "at '/pollSeconds'"),
        ("giveBack.forSeconds=19", "at '/giveBack/forSeconds': minimum"),
        (
            "networkPolicies.reportsFrom[0].app=prometheus",
            "at '/networkPolicies/reportsFrom/0': additional properties 'app' not allowed",
        ),
        (
            "networkPolicies.reportsFrom[0].podSelector.app=prometheus",
            "at '/networkPolicies/reportsFrom/0/podSelector': additional properties 'app' not allowed",
        ),
        (
            "networkPolicies.reportsFrom[0].ipBlock.cidr=10.0.0.0/8,"
            "networkPolicies.reportsFrom[0].podSelector.matchLabels.app=x",
            "at '/networkPolicies/reportsFrom/0'",
        ),
        ("gangs={YuniKorn}", "at '/gangs/0': value must be one of 'Coscheduling'"),
        ("leaderElection.enabled=maybe", "at '/leaderElection/enabled': got string, want boolean"),
        ("monitoring.prometheus.app=prometheus", "at '/monitoring/prometheus'"),
        ("monitoring.interval=often", "at '/monitoring/interval'"),
        ("monitoring.labels.release=1", "at '/monitoring/labels/release': got number, want string"),
        ("monitoring.enable=true", "at '/monitoring': additional properties 'enable' not allowed"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name(wrong: str, said: str):
    done = helm("template", "grpo-operator", str(CHART), "--set", wrong)
    assert done.returncode != 0
    assert said in done.stderr


def test_the_labels_of_namespaces_are_read_only_where_they_decide_and_all_are_watched():
    def rules(*arguments: str) -> list[Any]:
        made = objects("--set", "watch.allNamespaces=true", "--set", "userRoles.create=false", *arguments)
        return [rule for item in made for rule in item.get("rules", ()) if "namespaces" in rule["resources"]]

    selector = ("--set", "watch.namespaceSelector=grpo.dev/ignored!=true")
    assert rules() == []
    assert [rule["verbs"] for rule in rules(*selector)] == [["list", "watch"]]
    done = helm("template", "x", str(CHART), *selector)
    assert done.returncode != 0
    assert "watch.namespaceSelector is for watch.allNamespaces=true" in done.stderr


def test_watching_some_namespaces_and_all_namespaces_is_refused():
    done = helm(
        "template", "x", str(CHART), "--set", "watch.allNamespaces=true", "--set", "watch.namespaces={a}"
    )
    assert done.returncode != 0
    assert "watch.namespaces names some of what watch.allNamespaces=true has all of" in done.stderr


def test_a_namespaced_operator_has_no_right_outside_the_namespaces_it_watches():
    made = objects("--set", "watch.namespaces={team-a,team-b}")
    bindings = [item for item in made if item["kind"] == "RoleBinding"]
    where = {item["metadata"]["namespace"] for item in bindings if "leader" not in item["metadata"]["name"]}
    assert where == {"team-a", "team-b"}
    assert not any(item["kind"] == "ClusterRoleBinding" for item in made)
    subjects = [subject for item in bindings for subject in item["subjects"]]
    assert {subject["namespace"] for subject in subjects} == {"platform"}


def test_the_same_rights_are_given_for_a_namespace_and_for_the_cluster():
    def rules(kind: str, name: str, *arguments: str) -> Any:
        (role,) = (
            item for item in objects(*arguments) if (item["kind"], item["metadata"]["name"]) == (kind, name)
        )
        return role["rules"]

    wide = rules("ClusterRole", "platform:grpo-operator", "--set", "watch.allNamespaces=true")
    assert wide == rules("Role", "grpo-operator")


def test_reports_of_jobs_are_open_to_the_operators_own_pods_and_to_those_of_the_values():
    chosen = {"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}
    made = objects("--set-json", f"networkPolicies.reportsFrom={json.dumps([chosen])}")
    (deployment,) = (item for item in made if item["kind"] == "Deployment")
    template = deployment["spec"]["template"]
    settings, _ = parse(template["spec"]["containers"][0]["args"])
    assert settings.reports_from is not None
    operator, other = settings.reports_from
    assert other == chosen
    namespace = deployment["metadata"]["namespace"]
    assert operator["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    assert operator["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()


def test_the_operator_understands_its_arguments_with_any_values():
    for values in FILES:
        (deployment,) = (item for item in objects("--values", str(values)) if item["kind"] == "Deployment")
        settings, _ = parse(deployment["spec"]["template"]["spec"]["containers"][0]["args"])
        assert (settings.reports_from is not None) == settings.has_network_policies


def test_secrets_are_created_and_never_read_with_any_values():
    for values in FILES:
        for item in objects("--values", str(values)):
            for rule in item.get("rules", ()) or ():
                if "secrets" in rule["resources"] or "*" in rule["resources"]:
                    assert rule["verbs"] == ["create"]
                assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]


@pytest.mark.parametrize("values", FILES, ids=lambda path: path.stem)
def test_the_operators_pod_meets_pod_security_restricted(values: Any):
    (deployment,) = (item for item in objects("--values", str(values)) if item["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 1000
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_crd_stays_when_the_release_is_removed_and_can_be_left_out():
    def definitions(*arguments: str) -> list[Any]:
        return [item for item in objects(*arguments) if item["kind"] == "CustomResourceDefinition"]

    (definition,) = definitions()
    assert definition["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert definitions("--set", "crd.install=false") == []


@pytest.mark.parametrize(
    ("install", "said"),
    [("true", "Every other release needs --set crd.install=false"), ("false", "not this")],
)
def test_the_notes_say_first_whose_the_crd_is(install: str, said: str):
    rendered = helm("install", "x", str(CHART), "--dry-run=client", "--set", f"crd.install={install}").stdout
    first, *_ = rendered.partition("NOTES:\n")[2].split("\n\n")
    assert said in first


def test_only_two_replicas_get_a_disruption_budget_because_with_one_it_would_block_drains():
    def has_budget(replicas: int) -> bool:
        made = objects("--set", f"replicaCount={replicas}")
        return any(item["kind"] == "PodDisruptionBudget" for item in made)

    assert [has_budget(replicas) for replicas in (1, 2)] == [False, True]

"""Refused writes, with the API server's own messages."""

import pytest

from grpo_operator.apply.refusals import explain_refusal
from grpo_operator.cluster import errors
from grpo_operator.cluster.client import error_for
from grpo_operator.cluster.kinds import PODS, WORKLOADS, pod_groups

GROUPS = pod_groups("scheduling.example", "v1", comes_with="a scheduler of groups")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errors.Forbidden('pods "x" is forbidden: exceeded quota: small'), "QuotaExceeded"),
        (errors.Forbidden('pods "x" is forbidden: failed quota: small: must specify cpu'), "QuotaExceeded"),
        (errors.Forbidden('pods "x" is forbidden: violates PodSecurity "restricted"'), "PodSecurityRefused"),
        (errors.Forbidden("unable to create new content in namespace x because it is being terminated"),
         "NamespaceTerminating"),
        (errors.Forbidden('User "y" cannot create resource "pods"'), "CreateForbidden"),
        (errors.ServerFailed('failed calling webhook "x.example.test": refused'), "CreateFailed"),
        (errors.Invalid('Pod "x" is invalid: spec.containers[0].image: Required value'), "CreateRejected"),
    ],
)  # fmt: skip
def test_a_refusal_has_a_reason_and_keeps_the_api_servers_message(error: errors.KubernetesError, reason: str):
    found = explain_refusal(error, kind=PODS, name="x")
    assert (found.why.reason, found.child) == (reason, "x")
    assert found.why.message.startswith("Pod x ")
    assert str(error) in found.why.message


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (errors.NotFound("404 page not found"), "come with a scheduler of groups: install that"),
        (errors.Forbidden('User "y" cannot create resource "podgroups"'), "`gangs` of the chart"),
    ],
)
def test_a_pod_group_that_cannot_be_made_names_what_is_missing_and_the_fix(
    error: errors.KubernetesError, what: str
):
    found = explain_refusal(error, kind=GROUPS, name="x")
    assert found.why.reason == "GangUnavailable"
    assert what in found.why.message and str(error) in found.why.message


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (errors.NotFound("404 page not found"), "come with Kueue: install that, or take the job out of its"),
        (
            errors.Forbidden(
                'workloads.kueue.x-k8s.io "x" is forbidden: create not allowed while custom resource '
                "definition is terminating"
            ),
            "set spec.suspend to true, remove spec.queueName",
        ),
        (errors.Forbidden('User "y" cannot create resource "workloads"'), "`kueue.enabled` of the chart"),
        (
            errors.ServerFailed(
                'Internal error occurred: failed calling webhook "mworkload.kb.io": failed to call webhook: '
                'Post "https://10.0.0.1:443/mutate-kueue-x-k8s-io-v1beta2-workload?timeout=10s": '
                "dial tcp 10.0.0.1:443: connect: connection refused"
            ),
            "Kueue does not answer: its administrator starts it again",
        ),
        (
            errors.ServerFailed("conversion webhook for kueue.x-k8s.io/v1beta1, Kind=Workload failed"),
            "Kueue does not answer",
        ),
    ],
)
def test_a_workload_that_cannot_be_made_names_what_is_missing_and_the_fix(
    error: errors.KubernetesError, what: str
):
    found = explain_refusal(error, kind=WORKLOADS, name="x")
    assert found.why.reason == "QueueUnavailable"
    assert what in found.why.message and str(error) in found.why.message


def test_a_workload_that_another_webhook_does_not_let_through_is_no_failure_of_kueue():
    error = errors.ServerFailed('failed calling webhook "policies.example.test": context deadline exceeded')
    assert explain_refusal(error, kind=WORKLOADS, name="x").why.reason == "CreateFailed"


def test_a_pod_group_that_its_scheduler_refuses_is_explained_as_any_other_object():
    error = errors.Forbidden('admission webhook "validatepodgroup" denied the request: unable to find queue')
    assert explain_refusal(error, kind=GROUPS, name="x").why.reason == "CreateForbidden"


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (409, '{"reason": "AlreadyExists", "message": "m"}', errors.AlreadyExists),
        (409, '{"reason": "Conflict", "message": "m"}', errors.Conflict),
        (404, '{"reason": "NotFound", "message": "m"}', errors.NotFound),
        (403, '{"reason": "Forbidden", "message": "m"}', errors.Forbidden),
        (422, '{"reason": "Invalid", "message": "m"}', errors.Invalid),
        (500, '{"reason": "InternalError", "message": "m"}', errors.ServerFailed),
        (504, '{"reason": "Timeout", "message": "m"}', errors.ServerFailed),
        (503, "service unavailable", errors.Transient),
        (429, "{broken", errors.Transient),
    ],
)
def test_every_http_status_becomes_one_of_our_errors(status: int, body: str, kind: type):
    error = error_for(status, body)
    assert type(error) is kind
    assert str(error) in ("m", body)

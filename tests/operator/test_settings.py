"""The peers of `--reports-from`: what is accepted, and what is refused with the field and the fix."""

import pytest

from grpo_operator.cli import parse
from grpo_operator.settings import parse_peers


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ('[{"namespaceSelector": {}}]', {"namespaceSelector": {}}),
        (
            '[{"podSelector": {"matchLabels": {}}, "namespaceSelector": null, "ipBlock": null}]',
            {"podSelector": {}},
        ),
        (
            '[{"podSelector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": []}]}}]',
            {"podSelector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}},
        ),
        (
            '[{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]',
            {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
        ),
    ],
)
def test_peers_are_as_the_api_server_stores_them(text: str, stored: dict):
    assert parse_peers(text) == (stored,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("app=prometheus", "Invalid JSON"),
        ("{}", "must be of type array"),
        ("[]", "would keep the operator out"),
        ("[{}]", "peers[0]: Invalid value: Value error, give podSelector, namespaceSelector or both"),
        ('[{"podSelectors": {}}]', 'unknown field "peers[0].podSelectors"'),
        ('[{"podSelector": {"app": "prometheus"}}]', 'unknown field "peers[0].podSelector.app"'),
        ('[{"podSelector": {}}, {"ipBlock": {"cidr": "monitoring"}}]', "peers[1].ipBlock.cidr"),
        ('[{"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}}]', "or ipBlock alone"),
        ('[{"podSelector": {"matchExpressions": [{"key": "a", "operator": "is"}]}}]', '"NotIn", "Exists"'),
    ],
)
def test_wrong_peers_are_refused_with_the_field_and_an_example(
    text: str, said: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as ended:
        parse(["--runtime-image", "i", "--reports-from", text])
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert "argument --reports-from: " in shown and said in shown and "such as [{" in shown


def test_without_them_the_port_is_open_to_everyone():
    assert parse(["--runtime-image", "i"])[0].reports_from is None

"""The command line."""

import pytest

from grpo_operator.cli import parse
from grpo_operator.settings import GiveBackTimes, ProgressRoute


def test_from_a_shell_the_namespace_default_is_watched(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("GRPO_RUNTIME_IMAGE", raising=False)
    settings, _ = parse(["--runtime-image", "image"])
    assert (settings.namespaces, settings.progress) == (("default",), ProgressRoute.AUTO)


def test_several_namespaces_or_all_of_them():
    assert parse(["--runtime-image", "i", "-n", "a", "-n", "b"])[0].namespaces == ("a", "b")
    assert parse(["--runtime-image", "i", "-A"])[0].namespaces == ()


def test_namespaces_are_left_out_by_their_labels_where_all_are_watched():
    assert parse(["--runtime-image", "i", "-A"])[0].namespace_selector == ""
    settings, _ = parse(["--runtime-image", "i", "-A", "--namespace-selector=grpo.dev/ignored!=true"])
    assert settings.namespace_selector == "grpo.dev/ignored!=true"


def test_the_image_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GRPO_RUNTIME_IMAGE", "from-environment")
    assert parse([])[0].runtime_image == "from-environment"


def test_an_operator_asks_for_the_lease_of_the_namespace_it_watches_unless_told_not_to():
    assert parse(["--runtime-image", "i", "-n", "a", "-n", "b"])[0].lease == ("a", "grpo-operator")
    assert parse(["--runtime-image", "i", "-A", "--lease-name", "mine"])[0].lease == ("default", "mine")
    assert parse(["--runtime-image", "i", "--leader-elect=false"])[0].lease is None


def test_the_times_for_giving_nodes_back_can_be_set():
    default, _ = parse(["--runtime-image", "i"])
    assert default.give_back == GiveBackTimes(hold_seconds=300, hold_back_seconds=120)
    given = ["--give-back-after-seconds", "1800", "--give-back-for-seconds", "60"]
    settings, _ = parse(["--runtime-image", "i", *given])
    assert settings.give_back == GiveBackTimes(hold_seconds=1800, hold_back_seconds=60)


def test_kueue_is_looked_at_where_it_is_asked_for():
    assert not parse(["--runtime-image", "i"])[0].has_kueue
    assert parse(["--runtime-image", "i", "--kueue=true"])[0].has_kueue


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ([], "--runtime-image"),
        (["--runtime-image", "i", "-A", "-n", "a"], "not allowed with"),
        (["--runtime-image", "i", "-n", "a", "--namespace-selector", "x"], "is for --all-namespaces"),
        (["--runtime-image", "i", "--poll-seconds", "0"], "positive"),
        (["--runtime-image", "i", "--give-back-for-seconds", "19"], "19 is less than 20 s: the scheduler"),
        (
            ["--runtime-image", "i", "--network-policies=false", '--reports-from=[{"podSelector": {}}]'],
            "--network-policies=false leaves out",
        ),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_a_hint(
    arguments: list[str], hint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.delenv("GRPO_RUNTIME_IMAGE", raising=False)
    with pytest.raises(SystemExit) as ended:
        parse(arguments)
    assert ended.value.code == 2
    assert hint in capsys.readouterr().err

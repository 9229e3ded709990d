"""The bench that says what a turn takes, by kind of environment."""

import pytest

from grpo_api.resolve import resolve
from grpo_api.v1alpha1.job import parse_job
from grpo_runtime.rollouts.agents.kinds import AGENT_KINDS
from grpo_turns.figures import Round, figures_of, table
from grpo_turns.kinds import COROUTINE, job_of, kinds


def test_a_turn_is_what_a_long_episode_takes_beyond_a_short_one() -> None:
    coroutine = [
        Round(short=0.02, long=0.22, long_at_once=0.11),
        Round(short=0.02, long=0.42, long_at_once=0.22),
    ]
    program = [Round(short=1.0, long=1.4, long_at_once=0.66)] * 2
    found = figures_of(program, beside=coroutine)
    assert (found.turn, found.short) == pytest.approx((0.02, 1.0))
    # twice as long in one round, as long in the other
    assert found.ratio == pytest.approx(1.5)
    assert found.turn_at_once == pytest.approx(0.03)
    assert (
        table({"command": found}, at_once=4).splitlines()[-1] == "| command | 20.0 | 1.50 | 1000.0 | 30.0 |"
    )


def test_every_kind_of_environment_is_measured_beside_the_coroutine() -> None:
    run = resolve(parse_job({**job_of(8000), "metadata": {"name": "turns", "namespace": "a", "uid": "u"}}))
    assert run.environments is not None and len(run.environments) == len(kinds(8000))
    names = {name for name in AGENT_KINDS for spec in run.environments if getattr(spec, name) is not None}
    # a coroutine in a ConfigMap is one in the image
    assert names == AGENT_KINDS.keys() - {"config_map"}
    assert COROUTINE in kinds(8000)

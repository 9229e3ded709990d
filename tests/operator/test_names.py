"""Names of children are built and parsed in one place."""

import pytest

from grpo_operator.children.names import Names, rollout_position

NAMES = Names.of(job="copy", uid="1b4e28ba")


@pytest.mark.parametrize("replica", [0, 7, 1023])
def test_the_workload_of_an_engine_says_which_it_is(replica: int):
    assert NAMES.extra_replica(NAMES.extra_workload(replica=replica)) == replica


def test_no_other_name_is_that_of_an_engines_workload():
    group = NAMES.engine_group(replica=1, incarnation=0)
    others = (NAMES.workload, NAMES.rollout(replica=1, incarnation=0), group)
    assert [NAMES.extra_replica(name) for name in others] == [None, None, None]
    assert rollout_position(NAMES.extra_workload(replica=1)) is None


@pytest.mark.parametrize("name", ["copy-engine-3", "copy-engine"])
def test_a_job_that_is_called_like_an_engine_has_a_workload_of_its_own(name: str):
    names = Names.of(job=name, uid="uid-83")
    assert names.workload == f"{name}-289136"
    assert names.extra_replica(names.workload) is None

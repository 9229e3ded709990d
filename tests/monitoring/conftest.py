"""What trainers and the operator serve, read once."""

import pytest

from .known_metrics import Metrics, recorded, served_by_operator, served_by_trainers


@pytest.fixture(scope="session")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> Metrics:
    """Every metric that there is in Prometheus, with its labels."""
    trainers, operator = served_by_trainers(tmp_path_factory.mktemp("trainer")), served_by_operator()
    assert not trainers.keys() & operator.keys()
    return {**trainers, **operator, **recorded()}

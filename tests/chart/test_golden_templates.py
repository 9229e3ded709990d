"""The rendered chart, as YAML a person can read.

After an intended change: `pytest tests/chart --update-golden`, then read the diff. The CRD is left out: it is
generated and has tests of its own. Of rules and dashboards there are the names: they are files of the chart.
"""

from pathlib import Path

import pytest
import yaml

from .helm import VALUES, objects

pytestmark = pytest.mark.apiserver

GOLDEN = Path(__file__).parent / "golden"
FILES = sorted(VALUES.glob("*.yaml"))


def rendered(values: Path) -> str:
    made = [item for item in objects("--values", str(values)) if item["kind"] != "CustomResourceDefinition"]
    for item in made:
        if item["kind"] == "ConfigMap":
            item["data"] = sorted(item["data"])
        elif item["kind"] == "PrometheusRule":
            item["spec"]["groups"] = [group["name"] for group in item["spec"]["groups"]]
    return yaml.safe_dump_all(made, width=100)


@pytest.mark.parametrize("values", FILES, ids=lambda path: path.stem)
def test_the_chart_is_rendered_to_the_golden_objects(values: Path, is_updating_golden: bool):
    golden = GOLDEN / values.name
    made = rendered(values)
    if is_updating_golden:
        golden.write_text(made)
    assert golden.exists(), f"run with --update-golden to write {golden.name}"
    assert made == golden.read_text()


def test_every_golden_file_has_its_values():
    assert {path.name for path in GOLDEN.glob("*.yaml")} == {path.name for path in FILES}

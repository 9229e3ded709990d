"""What the planner writes in every phase is what was recorded of it, and the guide says what it means."""

import textwrap
from collections.abc import Callable

import pytest

from ..operator.fake_cluster import FakeCluster
from .phases import GUIDE, NAMES, PHASES, RECORDED, essence, planned, recorded, table

FILES = GUIDE.parents[2] / "charts" / "grpo-operator" / "gitops"


@pytest.mark.parametrize("phase", PHASES, ids=NAMES)
def test_the_planner_writes_what_was_recorded_of_a_phase(phase: Callable[[], FakeCluster]):
    assert essence(planned(phase)) == essence(recorded(phase.__name__))


def test_every_recorded_object_is_of_a_phase():
    assert {path.stem for path in RECORDED.iterdir()} == set(NAMES)


def test_the_guides_table_has_a_row_for_every_phase_with_its_name_and_why():
    said = [row[:2] for row in table().values()]
    of_phases = [(phase, recorded(phase.__name__)["status"]) for phase in PHASES]
    assert list(table()) == [(phase.__doc__ or "").rstrip(".") for phase in PHASES]
    assert said == [
        (
            status.get("phase", ""),
            next((c["reason"] for c in status.get("conditions", ()) if c["type"] == "Ready"), ""),
        )
        for _, status in of_phases
    ]


def test_the_guide_has_the_texts_for_argo_cd_and_flux_that_the_chart_ships():
    of_argo = (FILES / "argocd-health.lua").read_text()
    of_flux = (FILES / "flux-health.yaml").read_text()
    text = GUIDE.read_text()
    key = "  resource.customizations.health.grpo.dev_GRPOJob: |\n"
    assert f"{key}{textwrap.indent(of_argo, ' ' * 4)}  ```\n" in text
    assert f"  ```yaml\n{textwrap.indent(of_flux, '  ')}  ```\n" in text

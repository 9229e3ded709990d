"""The dashboards of the chart: Prometheus reads the queries of each panel, which ask for metrics and labels
that there are, and a person reads its title, unit and legend."""

import json
import re
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from .known_metrics import MONITORING, Metrics, unknown_in
from .promql import names_in

DASHBOARDS = sorted((MONITORING / "dashboards").glob("*.json"))
UNITS = {"none", "s", "percentunit", "Bps", "ops", "reqps"}
"""Of Grafana's, those that say what the axes here have."""
IN_QUERIES = {"$__rate_interval": "5m"}
"""Variables of Grafana that stand where PromQL has no string."""

BOARDS: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text()) for path in DASHBOARDS}
PANELS = [
    pytest.param(panel, id=f"{name}-{panel['title']}")
    for name, board in BOARDS.items()
    for panel in board["panels"]
    if panel["type"] != "row"
]


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_asks_for_metrics_and_labels_that_there_are(panel: dict[str, Any], metrics: Metrics):
    for target in panel["targets"]:
        assert unknown_in(target["expr"], metrics) == []
        shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert shown == names_in(target["expr"]).grouped - {"le"}


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_says_what_it_shows_in_which_unit_and_names_its_curves(panel: dict[str, Any]):
    assert panel["description"].endswith(".")
    unit = panel["fieldConfig"]["defaults"]["unit"]
    assert unit in UNITS
    assert [target["refId"] for target in panel["targets"]] == list("ABCDEFGH"[: len(panel["targets"])])
    legends = [target["legendFormat"] for target in panel["targets"]]
    assert all(legends) and len(set(legends)) == len(legends)
    are_seconds = {
        "_seconds" in target["expr"] and not re.search("^1 / |_seconds_count", target["expr"])
        for target in panel["targets"]
    }
    assert are_seconds == {unit == "s"}


def test_prometheus_reads_every_query_of_every_panel(promtool: Path, tmp_path: Path):
    queries = [target["expr"] for param in PANELS for target in param.values[0]["targets"]]
    assert len(queries) > 50
    assert said_of(queries, promtool, tmp_path) == ""
    assert "unclosed left parenthesis" in said_of(["max(grpo_step"], promtool, tmp_path)


@pytest.mark.parametrize("name", BOARDS)
def test_the_variables_of_a_dashboard_are_filled_from_metrics_that_there_are(name: str, metrics: Metrics):
    board = BOARDS[name]
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    asked = {"datasource", "namespace", "grpojob"} if name == "job" else {"datasource", "namespace"}
    assert variables.keys() == asked
    text = json.dumps([board["panels"], board["templating"]])
    assert set(re.findall(r"\$\{?(?!__)(\w+)", text)) == asked
    for variable in variables.values():
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
            assert found
            assert found[2] in metrics[next(iter(names_in(found[1]).metrics))]
            assert unknown_in(found[1], metrics) == []


@pytest.mark.parametrize("name", BOARDS)
def test_the_panels_of_a_dashboard_have_a_place_each_and_only_rows_a_number(name: str):
    board = BOARDS[name]
    assert board["uid"] == f"grpo-{name}" and board["title"].startswith("GRPO")
    assert not {"id", "version", "iteration"} & board.keys()
    rows = [panel for panel in board["panels"] if panel["type"] == "row"]
    assert [panel["id"] for panel in board["panels"] if "id" in panel] == list(range(1, len(rows) + 1))
    assert all("id" in row for row in rows)  # without it Grafana's types refuse a row
    places = [panel["gridPos"] for panel in board["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    assert not [(a, b) for a, b in combinations(places, 2) if overlap(a, b)]


def test_the_metrics_that_a_person_asks_for_first_are_drawn():
    """Reward, speed, phases, staleness, engines, mismatch, environments, and who waits for whom."""
    drawn = {
        name
        for panel in BOARDS["job"]["panels"]
        for target in panel.get("targets", ())
        for name in names_in(target["expr"]).metrics
    }
    assert drawn >= {
        *("grpo_reward", "grpo_step_time_seconds", "grpo_tokens_per_second", "grpo_time_generate_seconds"),
        *("grpo_async_staleness_max", "grpo_engines_current", "grpo_env_reward", "grpo_env_failures"),
        *("grpo_sampling_sampling_logp_difference_mean", "grpo_async_engine_idle_seconds"),
        "grpo_async_trainer_idle_seconds",
    }


def overlap(a: dict[str, int], b: dict[str, int]) -> bool:
    return all(
        a[start] < b[start] + b[size] and b[start] < a[start] + a[size]
        for start, size in (("x", "w"), ("y", "h"))
    )


def said_of(queries: list[str], promtool: Path, folder: Path) -> str:
    """What promtool says against them, by the parser of Prometheus."""
    for variable, value in IN_QUERIES.items():
        queries = [query.replace(variable, value) for query in queries]
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    file = folder / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    done = subprocess.run(
        [promtool, "check", "rules", file], capture_output=True, text=True, timeout=60, check=False
    )
    return done.stderr if done.returncode else ""

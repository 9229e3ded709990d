"""The page of a run: what is on it, and that a browser draws it."""

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from kept_samples import episode, given_up, keep, sample
from pod_builder import run_config

from grpo_runtime.cli import main
from grpo_runtime.report.charts import SECTIONS, sections_for
from grpo_runtime.report.metrics_file import MetricsFile, MetricsRecord
from grpo_runtime.report.page import PAGE_FILE, render_page
from grpo_runtime.report.run_file import RUN_CONFIG_FILE, keep_run_file
from grpo_runtime.report.samples import SampleTables

STEPS = 6
ATTACK = "</pre><script>document.title='taken over'</script>"


def values(step: int) -> dict[str, float]:
    return {
        "reward": step / STEPS,
        "rewards/match/mean": step / STEPS,
        "loss": 0.5,
        "grad_norm": 1.0,
        "own/solved": 0.25,
        "step_time": 10.0,
        "time/sync_seconds": 1.0,
        "time/generate_seconds": 7.0,
        "time/train_seconds": 1.5,
    }


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """A run of two attempts over an engine in a pod, with completions that are HTML."""
    run = run_config(
        mode="Disaggregated",
        algorithm={"steps": STEPS},
        trainer={"numNodes": 2, "processesPerNode": 1},
        rollout={"replicas": 2},
    )
    keep_run_file(tmp_path, run)
    metrics = MetricsFile(tmp_path)
    for step in range(1, STEPS + 1):
        attempt = 1 if step < 4 else 2
        metrics.write(MetricsRecord(attempt=attempt, step=step, time=0.0, values=values(step)))
    metrics.close()
    played = replace(
        sample(0.5), episode=episode(f"said{ATTACK}", state={"on": f"board{ATTACK}"}, output=ATTACK)
    )
    evaluated = replace(sample(0.25, completion="blue at last"), advantage=None)
    tables = SampleTables(tmp_path, start_step=0)
    handed_over = replace(sample(0.0), segments="0-1 rollout-0, 1-3 rollout-1")
    keep(tables, 5, handed_over, sample(1.0, completion=ATTACK), played, evaluated=[evaluated])
    return tmp_path


def test_the_page_has_facts_time_completions_and_configuration(output: Path) -> None:
    text = render_page(output)
    body = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert "6 of 6" in body and "0:01:00" in body
    assert "Who waited for whom" not in body
    assert "idle: trainer" in body and "idle: engines" in body
    assert "2 training processes with 2 engines takes 10 s a step. 1 training process with 3 engines" in body
    assert "colour 0?" in body
    assert "3 tokens, handed over (0-1 rollout-0, 1-3 rollout-1)</span>" in body
    assert "promptsPerStep" in body
    assert ATTACK not in text


def test_the_page_shows_episodes_turn_by_turn_and_the_newest_evaluation(output: Path) -> None:
    body = re.sub(r"<script>.*?</script>", "", render_page(output), flags=re.DOTALL)
    assert "adding: 2 turns, returned 0.5" in body
    turns = re.findall(
        r'<div class="(turn(?: trained)?)"><span class="note">(.*?)</span><pre>(.*?)</pre>', body, re.S
    )
    escaped = "&lt;/pre&gt;&lt;script&gt;document.title=&#39;taken over&#39;&lt;/script&gt;"
    assert turns == [
        ("turn", "system", "Add."),
        ("turn", "user", "1 + 2\nplease"),
        (
            "turn trained",
            "policy, 4 tokens trained, weights 1.3, 1.5 s, 0.25 s of it waiting",
            f"said{escaped}",
        ),
        ("turn", "tool", "3"),
        (
            "turn trained",
            "policy, 2 tokens trained (0-1 rollout-0, 1-2 rollout-1), weights "
            "1.3 1.4, 0.123 s, 0 s of it waiting",
            "It is 3.",
        ),
        ("turn", "state", f"{{&#34;on&#34;: &#34;board{escaped}&#34;}}"),
        ("turn", "its program wrote", escaped),
    ]
    evaluation = body[body.index("<h2>Evaluation</h2>") :]
    assert "After step 5, the newest of 1." in evaluation and "blue at last" in evaluation
    assert "reward 0.25</span>" in evaluation


def test_what_was_given_up_is_shown_behind_the_groups_whose_rewards_differ_most(output: Path) -> None:
    rewards = [(0.0, float(group)) for group in range(1, 6)]
    made = [sample(reward, group=group) for group, pair in enumerate(rewards) for reward in pair]
    keep(SampleTables(output, start_step=5), 6, *made, given_up(f"it wrote: {ATTACK}", group=5))
    text = render_page(output)
    body = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    completions = body[body.index("<h2>Completions</h2>") : body.index("<h2>Evaluation</h2>")]
    assert re.findall(r"<summary>(.*?)</summary>", completions) == [
        f"prompt {number}" for number in (5, 4, 3, 2, 6)
    ]
    assert "differ most, and behind them some of which completions were given up. <code>" in completions
    assert re.findall(r'<span class="down">given up</span>\s*<pre>(.*?)<', completions) == [
        "it wrote: &lt;/pre&gt;&lt;script&gt;document.title=&#39;taken over&#39;&lt;/script&gt;"
    ]
    assert ATTACK not in text


def test_a_run_that_teaches_nothing_says_so_on_its_page(output: Path) -> None:
    assert "NoLearningSignal" not in render_page(output)
    metrics = MetricsFile(output)
    for step in range(1, STEPS + 1):
        lacking = {"steps_without_signal/no_reward": float(step), "env/go/left_out_in_a_row": 16.0 + step}
        metrics.write(MetricsRecord(attempt=3, step=step, time=0.0, values=values(step) | lacking))
    metrics.close()
    body = re.sub(r"<script>.*?</script>", "", render_page(output), flags=re.DOTALL)
    assert "NoLearningSignal: nothing was learned from accuracy in steps 1 to 6: no completion had" in body
    assert "EnvironmentFailing: of environment go the last 22 groups were left out" in body


def test_the_split_is_that_of_the_engines_that_sampled_after_a_job_was_scaled(output: Path) -> None:
    metrics = MetricsFile(output)
    for step in range(1, STEPS + 1):
        scaled = values(step) | {"sync/engines": 2.0 if step < 3 else 6.0}
        metrics.write(MetricsRecord(attempt=3, step=step, time=0.0, values=scaled))
    metrics.close()
    body = re.sub(r"<script>.*?</script>", "", render_page(output), flags=re.DOTALL)
    assert "2 training processes with 6 engines is about the best split of these GPUs" in body


@pytest.fixture
def asynchronous(tmp_path: Path) -> Path:
    """A run whose three engines wait for the trainer, and are paused for it."""
    run = run_config(algorithm={"steps": STEPS}, rollout={"replicas": 3}, **{"async": {"maxStaleness": 1}})
    keep_run_file(tmp_path, run)
    metrics = MetricsFile(tmp_path)
    for step in range(1, STEPS + 1):
        waits = {
            "time/generate_seconds": 0.5,
            "async/trainer_idle_seconds": 1.5,
            "async/engine_idle_seconds": 4.0,
            "async/engine_idle_share": 0.4,
            "async/groups_by_staleness/1": 16.0,
            "sync/paused_seconds": 0.2,
        }
        metrics.write(MetricsRecord(attempt=1, step=step, time=0.0, values=values(step) | waits))
    metrics.close()
    return tmp_path


def test_in_asynchronous_training_the_page_says_who_waited_for_whom(asynchronous: Path) -> None:
    text = render_page(asynchronous)
    body = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert "Who waited for whom" in body
    assert "Engines waited for the trainer 38 % of the time: 2 engines would do what 3 did." in body
    idle = re.findall(r"<td>idle: (\w+)</td><td [^>]*>([\d.]+)</td>", body)
    assert idle == [("trainer", "1.5"), ("engines", "4")], "measured, and not of phases one after the other"
    assert '"name":"paused for weights"' in text and '"name":"waiting for groups"' in text
    assert "about the best split" not in body


def test_a_metric_of_the_users_own_has_a_chart() -> None:
    titles = [chart.title for section in sections_for(["own/solved"]) for chart in section.charts]
    assert titles == ["own/solved"]


def test_no_metric_is_drawn_twice() -> None:
    """Each of a run is in one chart, or in none if its curve says nothing."""
    present = [*sorted(values(1)), "kl", "entropy", "completions/crc32", "clip_ratio/low_mean"]
    drawn = [n for section in sections_for(present) for chart in section.charts for n in chart.names(present)]
    assert sorted(drawn) == sorted(set(present) - {"step_time", "completions/crc32"})
    assert len({chart.title for section in SECTIONS for chart in section.charts}) == sum(
        len(section.charts) for section in SECTIONS
    )


def test_a_browser_draws_every_chart_and_runs_nothing_that_a_model_wrote(output: Path) -> None:
    drawn = drawn_page(output)
    num_charts = sum(len(section.charts) for section in sections_for(sorted(values(1))))
    # every chart has a layer with its curves, which is there once Plotly has drawn it
    assert drawn.count('class="scatterlayer') == num_charts
    assert "own/solved</text>" in drawn
    assert "<title>taken over</title>" not in drawn


def test_a_browser_draws_who_waited_for_whom(asynchronous: Path) -> None:
    """And how many groups were how old."""
    assert drawn_page(asynchronous).count('class="barlayer') == 3


def drawn_page(output: Path) -> str:
    """The page once a browser has run its scripts."""
    browser = shutil.which("chromium")
    if browser is None:
        assert os.environ.get("CI") != "true", "make browser installs Chromium"
        pytest.skip("no Chromium here: `make browser` installs it")
    page = output / PAGE_FILE
    assert main(["report", str(output)]) == 0
    drawn = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={output / 'browser'}",
         "--virtual-time-budget=20000", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return drawn.stdout


def test_a_run_without_steps_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 40
    assert "no step is finished" in capsys.readouterr().err


def test_the_configuration_of_the_first_attempt_stays_until_another_job_uses_the_folder(
    tmp_path: Path,
) -> None:
    first, later = run_config(algorithm={"steps": 5}), run_config(algorithm={"steps": 6})
    keep_run_file(tmp_path, first)
    keep_run_file(tmp_path, later)
    assert json.loads((tmp_path / RUN_CONFIG_FILE).read_text())["algorithm"]["steps"] == 5
    other = later.model_copy(update={"job": later.job.model_copy(update={"uid": "another"})})
    keep_run_file(tmp_path, other)
    assert json.loads((tmp_path / RUN_CONFIG_FILE).read_text())["algorithm"]["steps"] == 6

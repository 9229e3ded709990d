import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import nan
from pathlib import Path

from pytest import CaptureFixture, approx

from grpo_api.contract.progress import EngineCounts, Progress, TrainerState
from grpo_api.contract.run_config import JobRef
from grpo_api.contract.versions import PolicyVersion
from grpo_runtime.cli import main
from grpo_runtime.data.prompt import Prompt
from grpo_runtime.report.metrics import (
    METRICS,
    completion_metrics,
    count_tokens,
    environment_metrics,
    environment_rewards,
)
from grpo_runtime.report.metrics_file import MetricsFile, MetricsRecord
from grpo_runtime.report.plot import plot, plot_run
from grpo_runtime.report.progress import ProgressFile, read_progress
from grpo_runtime.report.prometheus import PROMETHEUS_FILE, PrometheusFile, prometheus_text, served_metrics
from grpo_runtime.report.sink import StepRecord
from grpo_runtime.rollouts.group import Group
from grpo_runtime.rollouts.interface import (
    AgentCalls,
    AgentTurn,
    GenerateRequest,
    GivenUp,
    Rollout,
    VersionSpan,
)


def rollout(num_tokens: int, *, is_terminated: bool = True, versions: tuple[str, ...] = ("1.0",)) -> Rollout:
    spans = tuple(VersionSpan(PolicyVersion.parse(text), 0, num_tokens) for text in versions)
    return Rollout((1, 2), (3,) * num_tokens, (-1.0,) * num_tokens, spans, is_terminated, "fake")


def group_of(found: Sequence[Rollout | GivenUp], environment: str) -> Group:
    """A group of an environment, which its prompt names."""
    prompt = Prompt(index=0, content=environment, columns={})
    requests = [GenerateRequest((1,), seed=0)] * len(found)
    return Group(step=0, number=0, prompt=prompt, requests=requests, rollouts=[*found])


def test_completion_lengths_go_by_the_names_of_trl() -> None:
    metrics = dict(completion_metrics([rollout(2), rollout(4), rollout(6, is_terminated=False)]))
    del metrics["completions/crc32"]
    assert metrics == {
        "completions/mean_length": 4.0,
        "completions/min_length": 2.0,
        "completions/max_length": 6.0,
        "completions/mean_terminated_length": 3.0,
        "completions/min_terminated_length": 2.0,
        "completions/max_terminated_length": 4.0,
        "completions/clipped_ratio": approx(1 / 3),
    }
    assert count_tokens([rollout(2), rollout(4)]) == (4, 6)


def test_an_episode_is_one_completion_with_the_tokens_of_all_its_sequences() -> None:
    episode = replace(
        rollout(2, is_terminated=False),
        branches=(replace(rollout(4), loss_mask=(True, False, True, True)), rollout(1)),
    )
    cut = replace(rollout(3), branches=(rollout(5, is_terminated=False),))
    metrics = completion_metrics([episode, cut])
    assert episode.num_sampled == 2 + 3 + 1
    assert metrics["completions/mean_length"] == (6 + 8) / 2
    # an episode ends as its last sequence does
    assert metrics["completions/clipped_ratio"] == 0.5
    assert metrics["completions/max_terminated_length"] == 6
    assert count_tokens([episode, cut]) == (5 * 2, 2 + 4 + 1 + 3 + 5)
    alone = completion_metrics([replace(episode, branches=()), cut])
    assert alone["completions/crc32"] != metrics["completions/crc32"]


def test_what_agents_do_is_measured_by_environment() -> None:
    def calls(environment: str, *turns: tuple[int, float, float], **overridden: int) -> AgentCalls:
        """Of each turn the tokens, the seconds, and those of waiting."""
        made = [
            AgentTurn(sequence=0, start=5, end=5 + num, seconds=seconds, waited_seconds=waited)
            for num, seconds, waited in turns
        ]
        return AgentCalls(environment=environment, turns=made, overridden=overridden)

    long = calls("game", (4, 1.0, 0.5), (2, 2.0, 0.0), (3, 3.0, 1.0), temperature=2, seed=1)
    episodes = [
        replace(rollout(2), branches=(rollout(1),), calls=replace(long, failures={"policy": 2, "limit": 1})),
        rollout(2),
        replace(rollout(2), calls=calls("game", (7, 0.0, 0.0), temperature=2)),
        replace(rollout(2), calls=calls("shop", (1, 0.5, 0.25))),
        replace(rollout(2), calls=calls("shop", (1, 0.5, 0.25))),
    ]
    assert environment_rewards(episodes, [1.0, 9.0, 0.5, nan, nan]) == {"env/game/reward": 0.75}
    game, shop = [episodes[0], episodes[2]], episodes[3:]
    groups = [
        group_of(game[:1], "game"),
        group_of(shop, "shop"),
        # one that is left out is measured, too
        group_of([game[1], GivenUp("it raised", 3)], "game"),
        group_of([GivenUp("it raised", 3), GivenUp("it died", 2)], "ludo"),
    ]
    assert groups[2].is_left_out
    assert environment_metrics(groups, environment=lambda group: str(group.prompt.content)) == {
        "env/game/mean_turns": 2.0,
        "env/game/mean_sequences": 1.5,
        "env/game/turn_tokens": 4.0,
        "env/game/turn_seconds": 1.5,
        "env/game/turn_waited_seconds": 0.375,
        "env/game/failures/environment": 3.0,
        "env/game/failures/limit": 1.0,
        "env/game/failures/policy": 2.0,
        "env/game/overridden/seed": 1.0,
        "env/game/overridden/temperature": 4.0,
        "env/ludo/failures/environment": 5.0,
        "env/shop/mean_turns": 1.0,
        "env/shop/mean_sequences": 1.0,
        "env/shop/turn_tokens": 1.0,
        "env/shop/turn_seconds": 0.5,
        "env/shop/turn_waited_seconds": 0.25,
    }


def test_the_checksum_tells_runs_with_other_tokens_or_another_order_apart() -> None:
    runs = [[2, 4], [4, 2], [6], [2, 4]]
    sums = [completion_metrics([rollout(n) for n in run])["completions/crc32"] for run in runs]
    assert sums[0] == sums[3]
    assert len(set(sums)) == 3


def test_prometheus_gets_a_label_for_the_reward_function_and_escaped_names() -> None:
    values = {"rewards/a/mean": 0.5, "rewards/b-c/mean": 1.0, "completions/mean_length": 3.0}
    values |= {"step_time": 2.0, "step_time_seconds": 9.0}  # the second one is a user's own
    values |= {"own/top-1 %.é": 4.0, 'rewards/"q"\\\n/mean': 2.0}
    lines = prometheus_text(values, labels={"grpojob": "copy"}).splitlines()
    assert 'grpo_rewards_mean{function="a",grpojob="copy"} 0.5' in lines
    assert 'grpo_rewards_mean{function="b-c",grpojob="copy"} 1.0' in lines
    assert 'grpo_completions_mean_length{grpojob="copy"} 3.0' in lines
    assert 'grpo_step_time_seconds{grpojob="copy"} 2.0' in lines
    assert 'grpo_own_top_1____{grpojob="copy"} 4.0' in lines
    assert r'grpo_rewards_mean{function="\"q\"\\\n",grpojob="copy"} 2.0' in lines


def test_prometheus_gets_labels_for_the_environment_and_what_is_counted_of_it() -> None:
    values = {"env/game/reward": 0.5, "env/game/failures/tool": 3.0, "eval/env/game/reward": 1.0}
    lines = prometheus_text(values, labels={"grpojob": "copy"}).splitlines()
    assert sorted(line for line in lines if line.startswith("grpo_")) == [
        'grpo_env_failures{environment="game",grpojob="copy",kind="tool"} 3.0',
        'grpo_env_reward{environment="game",grpojob="copy"} 0.5',
        'grpo_eval_env_reward{environment="game",grpojob="copy"} 1.0',
    ]


def test_no_name_in_prometheus_has_that_of_a_function_an_environment_or_an_age() -> None:
    values = {"rewards/mine/failures": 1.0, "rewards/mine/failed_calls": 2.0, "eval/rewards/mine/mean": 0.5}
    values |= {"async/groups_by_staleness/2": 3.0}
    lines = prometheus_text(values, labels={"grpojob": "copy"}).splitlines()
    assert sorted(line for line in lines if line.startswith("grpo_")) == [
        'grpo_async_groups_by_staleness{grpojob="copy",staleness="2"} 3.0',
        'grpo_eval_rewards_mean{function="mine",grpojob="copy"} 0.5',
        'grpo_rewards_failed_calls{function="mine",grpojob="copy"} 2.0',
        'grpo_rewards_failures{function="mine",grpojob="copy"} 1.0',
    ]
    names = prometheus_text({_named(name): 1.0 for name in METRICS}, labels={})
    assert "mine" not in re.sub(r"\{.*|# HELP.*", "", names)


def test_promtool_says_nothing_against_the_metrics_of_a_trainer(
    check_metrics: Callable[[str], str], tmp_path: Path
) -> None:
    """And it would, of a unit that is none of Prometheus' base units."""
    values = {_named(name): 1.0 for name in METRICS if name != "engines/desired"}
    job = JobRef(namespace="team", name="copy", uid="uid")
    assert served_metrics(tmp_path, job=job, desired=None) == b""
    file = PrometheusFile(tmp_path, job=job, total_steps=9)
    file.write(
        StepRecord(
            attempt=1, step=1, time=0.0, values=values, engines=EngineCounts(desired=1, known=1, current=1)
        )
    )
    written = (tmp_path / PROMETHEUS_FILE).read_bytes()
    assert served_metrics(tmp_path, job=job, desired=None) == written
    text = served_metrics(tmp_path, job=job, desired=3).decode()
    assert text.endswith('grpo_engines_desired{grpojob="copy"} 3.0\n')
    series = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(series) > len(METRICS)
    assert all('grpojob="copy"' in line and 'job="' not in line.replace("grpojob", "") for line in series)
    assert check_metrics(text) == ""
    assert "use base unit" in check_metrics(prometheus_text({"sync/gigabytes": 1.0}, labels={}))


def _named(metric: str) -> str:
    """A metric of METRICS as it is in a run."""
    metric = metric.replace("staleness/NAME", "staleness/2").replace("NAME", "mine")
    return metric.replace("FIELD", "seed").replace("KIND", "tool")


def test_a_users_own_metric_with_the_name_of_the_rewards_gives_way_to_them() -> None:
    values = {"rewards/mean": 9.0, "rewards/a/mean": 0.5, "rewards_mean": 9.0}
    lines = prometheus_text(values, labels={"grpojob": "copy"}).splitlines()
    found = [line for line in lines if line.startswith("grpo_")]
    assert found == ['grpo_rewards_mean{function="a",grpojob="copy"} 0.5']


def test_two_metrics_with_the_same_escaped_name_are_one_in_prometheus() -> None:
    lines = prometheus_text({"own/a-b": 1.0, "own/a b": 2.0}, labels={"grpojob": "copy"}).splitlines()
    assert [line for line in lines if "grpo_own_a_b" in line and not line.startswith("# HELP")] == [
        "# TYPE grpo_own_a_b gauge",
        'grpo_own_a_b{grpojob="copy"} 2.0',
    ]


def test_every_update_of_the_progress_is_a_sign_of_life(tmp_path: Path) -> None:
    file = ProgressFile(tmp_path, Progress(job_uid="uid", attempt=1, total_steps=5))
    file.update(state=TrainerState.TRAINING, step=2)
    file.update()
    progress = read_progress(tmp_path)
    assert progress is not None
    assert (progress.heartbeat, progress.step, progress.state) == (2, 2, TrainerState.TRAINING)
    assert read_progress(tmp_path / "elsewhere") is None


def test_a_curve_rises_from_the_lower_left_to_the_upper_right() -> None:
    *lines, title = plot(list(range(200)), title="reward by step", width=28, height=3).splitlines()
    assert [line[:7] for line in lines] == ["199.000", "       ", "  0.000"]
    assert (lines[0][8], lines[-1][-1]) == ("\u2800", "\u2800")
    assert "\u2800" not in (lines[0][-1], lines[-1][8])
    assert title.strip() == "reward by step"
    assert "\n" in plot([1.0], title="flat")


def test_the_plot_of_a_run_without_any_reward_says_so(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path)
    metrics.write(MetricsRecord(attempt=1, step=1, time=0.0, values={"loss": 0.0}))
    metrics.close()
    assert plot_run(tmp_path) == "no reward in any of 1 steps"


def test_the_plot_command_draws_a_run(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    assert main(["plot", str(write_run(tmp_path))]) == 0
    assert "reward, steps 1 to 3" in capsys.readouterr().out


def write_run(folder: Path) -> Path:
    writer = MetricsFile(folder)
    for step in (1, 2, 3):
        writer.write(MetricsRecord(attempt=1, step=step, time=0.0, values={"reward": step / 3}))
    writer.close()
    return folder

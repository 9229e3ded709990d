"""The reward curve of a run as text."""

from pathlib import Path

from grpo_runtime.report.curve import plot
from grpo_runtime.report.metrics import METRICS_FILE, read_metrics


def plot_rewards(path: Path, *, width: int = 72) -> str:
    """The reward of each step of the run whose metrics are at `path`, as text of `width` columns."""
    records = read_metrics(path / METRICS_FILE if path.is_dir() else path)
    rewards = {record.step: record.values["reward"] for record in records if "reward" in record.values}
    if not rewards:
        return "no step is finished yet"
    title = f"reward, steps {min(rewards)} to {max(rewards)}"
    return plot(list(rewards.values()), title=title, width=width)

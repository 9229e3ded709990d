"""completions/ and evaluations/: the completions of a step, and those of the evaluation after it, with their
rewards, as a table, and its reader.

A column of the table is a field of `Sample`. Parquet, with one file for each step that is kept, so that
pandas and `datasets` read a run as they are:
`load_dataset("parquet", data_files="completions/*.parquet")`.
"""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_runtime.errors import UserError
from grpo_runtime.report.episodes import Episode
from grpo_runtime.storage.files import write_atomically
from grpo_runtime.storage.volume_errors import volume_errors_named

if TYPE_CHECKING:  # a step as a sink gets it has samples
    from grpo_runtime.report.sink import StepRecord

COMPLETIONS_FOLDER, EVALUATIONS_FOLDER = "completions", "evaluations"
REWARD_COLUMN = "rewards/{}"
"""Column of what one reward function gave."""
_REWARDS = REWARD_COLUMN.format("")
_FILE = re.compile(r"step-(\d+)\.parquet")
TRACKED = ("group", "prompt", "completion", "reward", "advantage", "num_tokens")
"""What trackers show of a completion that was made, in the order of their columns."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One completion, and what became of it; or one that was given up, of which there is only its prompt, and
    why."""

    group: int
    """Index of its prompt in the step, from 0: the completions of a group compete."""
    prompt: str
    """The prompt as the policy got it, special tokens included."""
    completion: str
    """The completion as the reward functions got it."""
    rewards: Mapping[str, float | None]
    """By reward function; None where it gave none."""
    reward: float | None
    """The weighted sum."""
    advantage: float | None
    """None in an evaluation."""
    num_tokens: int
    is_terminated: bool
    """Whether it ended by itself, and not at sampling.maxTokens."""
    policy_versions: str
    """Versions of the weights that sampled it, in order, such as `1.40` or `1.40 1.41`."""
    engine: str
    segments: str = ""
    """Which engine sampled which of its tokens, where one has handed it over, such as
    `0-12 rollout-0, 12-30 rollout-1`. The turns of an episode have their own."""
    episode: Episode | None = None
    """What its agent and the policy said; None where no agent made it. A table has it as JSON, or no text."""
    given_up: str = ""
    """How the last try to make it failed, with the end of what a program wrote; empty where it was made."""

    @classmethod
    def of_given_up(cls, why: str, *, group: int, prompt: str, names: Iterable[str]) -> "Sample":
        """One that was not made, in a run with the reward functions `names`."""
        return cls(
            group=group,
            prompt=prompt,
            completion="",
            rewards=dict.fromkeys(names),
            reward=None,
            advantage=None,
            num_tokens=0,
            is_terminated=False,
            policy_versions="",
            engine="",
            given_up=why,
        )

    @property
    def cut_at(self) -> str:
        """What is said of one that did not end by itself."""
        return "cut at maxTokens" if self.episode is None else "cut at a limit"


def made(samples: Sequence[Sample]) -> list[Sample]:
    """Those that were not given up: why one was has the end of what a program wrote, which stays with the
    run."""
    return [sample for sample in samples if not sample.given_up]


class SampleTables:
    """Writes a table for each step that comes with its samples, and for each evaluation. Tables beyond
    `start_step`, from which the attempt starts, are removed: their steps are trained again.

    Raises VolumeFullError, with the name of the volume, when no space is left there.
    """

    def __init__(self, output_dir: Path, *, start_step: int) -> None:
        self._output_dir = output_dir
        for folder in (COMPLETIONS_FOLDER, EVALUATIONS_FOLDER):
            for step, path in _tables(output_dir / folder).items():
                if step > start_step:
                    path.unlink()

    def write(self, record: "StepRecord") -> None:
        """Keep the samples of a step."""
        for folder, samples in (
            (COMPLETIONS_FOLDER, record.samples),
            (EVALUATIONS_FOLDER, record.evaluated),
        ):
            if samples:
                self._write(record, samples, folder=self._output_dir / folder)

    def _write(self, record: "StepRecord", samples: Sequence[Sample], *, folder: Path) -> None:
        # it starts threads when it is imported, which the forks of this process would not have
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = [_row(sample, step=record.step, attempt=record.attempt) for sample in samples]
        table, content = pa.Table.from_pylist(rows), io.BytesIO()
        # where no completion has one, it would be no column of numbers
        of_numbers = {"reward", "advantage"} | {name for name in rows[0] if name.startswith(_REWARDS)}
        fields = [
            field.with_type(pa.float64()) if field.name in of_numbers else field for field in table.schema
        ]
        pq.write_table(table.cast(pa.schema(fields)), content, compression="zstd")
        with volume_errors_named(self._output_dir):
            folder.mkdir(exist_ok=True)
            write_atomically(folder / f"step-{record.step:06d}.parquet", content.getvalue())

    def close(self, *, has_failed: bool = False) -> None:
        """Every table is written."""


def steps_with_samples(output_dir: Path, *, folder: str = COMPLETIONS_FOLDER) -> list[int]:
    """The steps whose completions were kept, in order."""
    return sorted(_tables(output_dir / folder))


def read_samples(output_dir: Path, *, step: int, folder: str = COMPLETIONS_FOLDER) -> list[Sample]:
    """The completions of a step, or of the evaluation after it, group by group.

    Raises UserError when they were not kept or cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = _tables(output_dir / folder).get(step)
    if path is None:
        raise UserError(f"the completions of step {step} are not in {output_dir / folder}")
    try:
        rows = pq.read_table(path).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    return [_sample(row) for row in rows]


def read_groups(output_dir: Path, *, step: int, folder: str = COMPLETIONS_FOLDER) -> list[list[Sample]]:
    """The completions of a step, those of each prompt together. Raises as `read_samples` does."""
    samples = read_samples(output_dir, step=step, folder=folder)
    return [list(group) for _, group in groupby(samples, lambda sample: sample.group)]


def _tables(folder: Path) -> dict[int, Path]:
    found = ((_FILE.fullmatch(path.name), path) for path in folder.glob("step-*.parquet"))
    return {int(match[1]): path for match, path in found if match}


def _row(sample: Sample, *, step: int, attempt: int) -> dict[str, Any]:
    rewards = {REWARD_COLUMN.format(name): value for name, value in sample.rewards.items()}
    rest = {name: value for name, value in vars(sample).items() if name != "rewards"}
    episode = sample.episode.to_json() if sample.episode else ""
    return {"step": step, "attempt": attempt, **rest, "episode": episode, **rewards}


def _sample(row: Mapping[str, Any]) -> Sample:
    rewards = {name.removeprefix(_REWARDS): value for name, value in row.items() if name.startswith(_REWARDS)}
    own = {name: row[name] for name in Sample.__dataclass_fields__ if name not in ("rewards", "episode")}
    episode = Episode.of_json(row["episode"]) if row["episode"] else None
    return Sample(rewards=rewards, episode=episode, **own)

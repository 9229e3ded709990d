"""docs/trl-fields.md has every field of TRL's GRPOConfig once, those of the TrainingArguments that GRPO runs
set, and names only fields that a job has."""

import re
from collections import Counter
from dataclasses import fields as fields_of
from pathlib import Path

from transformers import TrainingArguments

from .spec_fields import CRD, fields, spec_schema

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "trl-fields.md"
TRL_FIELDS = Path(__file__).with_name("trl_grpo_config_1.16.txt").read_text().split()
"""The fields that GRPOConfig of TRL 1.16.0 declares itself, in its order."""
OURS = {path.replace("[]", "") for path, _ in fields(spec_schema(CRD))}


def rows() -> list[tuple[list[str], list[str]]]:
    """The names in the first and in the second column of each row of the table."""
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith("| ") and "`" in line]
    cells = [line.strip("|").split("|") for line in lines]
    return [(re.findall(r"`([^`]+)`", theirs), re.findall(r"`([^`]+)`", ours)) for theirs, ours, _ in cells]


def test_every_field_of_trl_has_its_place():
    found = Counter(name for theirs, _ in rows() for name in theirs)
    of_training_arguments = [name for name in found if name not in TRL_FIELDS]
    assert found == Counter(TRL_FIELDS + of_training_arguments)
    assert set(of_training_arguments) <= {field.name for field in fields_of(TrainingArguments)}
    assert {"max_steps", "per_device_train_batch_size", "max_grad_norm", "bf16"} <= set(of_training_arguments)


def test_what_stands_beside_it_is_a_field_of_the_spec():
    ours = {name.replace("[]", "") for _, names in rows() for name in names}
    assert ours - OURS == set()

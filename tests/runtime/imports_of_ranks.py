"""Importing this module imports what every rank needs at its beginning and at its end, for `forks`, and makes
what libraries make when they are first used: tables of models, compiled expressions, templates of charts."""

import tempfile
from pathlib import Path

# pyarrow looks for it when it makes a first table
import pandas  # noqa: F401
import peft  # noqa: F401
import pyarrow.dataset
import pyarrow.pandas_compat
import pyarrow.parquet  # noqa: F401
from pod_builder import run_config
from transformers.utils.logging import disable_progress_bar

import grpo_runtime.report.page
import grpo_runtime.rewards.worker
import grpo_runtime.supervisor.supervisor
import grpo_runtime.trainer.rank
import grpo_runtime.trainer.strategy.fsdp2  # noqa: F401
from grpo_runtime.model.load import load_policy, load_tokenizer
from grpo_runtime.model.tiny import write_tiny_model
from grpo_runtime.report.charts import Chart, curves
from grpo_runtime.report.metrics_file import MetricsRecord

with tempfile.TemporaryDirectory() as _folder:
    write_tiny_model(Path(_folder))
    # it has a thread
    disable_progress_bar()
    load_policy(Path(_folder), dtype="float32")
    load_tokenizer(Path(_folder))
run_config()
_RECORD = MetricsRecord(attempt=1, step=1, time=0.0, values={"reward": 0.0})
curves(Chart("reward", ("reward",)), [_RECORD], present=["reward"])

"""The sinks of every run: the only list of them. Trackers, which a job names, are in `trackers`."""

from grpo_runtime.report.metrics import MetricsFile
from grpo_runtime.report.prometheus import PrometheusFile
from grpo_runtime.report.samples import SampleTables
from grpo_runtime.report.sink import OpenSink
from grpo_runtime.report.tensorboard import TensorBoardFiles

SINKS: tuple[OpenSink, ...] = (
    lambda context: MetricsFile(context.output_dir),
    lambda context: TensorBoardFiles(context.output_dir, start_step=context.start_step),
    lambda context: SampleTables(context.output_dir, start_step=context.start_step),
    lambda context: PrometheusFile(context.run_dir, job=context.job),
)
"""In the order in which they get a step: metrics.jsonl, which is on disk then, before all others."""

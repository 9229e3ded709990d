"""Metrics that stay exact when a batch is cut into micro-batches and ranks: they are kept as sums with
counts, as minima and as maxima, and become means only at the end."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A part of a mean (`total` over `count`), or of a minimum or maximum (`total` is the extreme so far and
    `count` is not used)."""

    kind: Literal["mean", "min", "max"]
    total: torch.Tensor
    count: torch.Tensor


Metrics = dict[str, Metric]


def mean_of(values: torch.Tensor, *, mask: torch.Tensor) -> Metric:
    """The mean of `values` [B, T] where `mask` [B, T] is true, or of all `values` [B, 1]."""
    values = values.detach()
    if values.shape[1] == 1 and mask.shape[1] != 1:
        return Metric(kind="mean", total=values.sum(), count=values.new_tensor(float(values.shape[0])))
    return Metric(kind="mean", total=torch.where(mask, values, 0.0).sum(), count=mask.sum().to(values.dtype))


def min_of(values: torch.Tensor) -> Metric:
    """The least of the values that are not NaN, of any shape."""
    values = _without_nan(values)
    least = values.min() if values.numel() else values.new_tensor(math.inf)
    return Metric(kind="min", total=least, count=torch.ones_like(least))


def max_of(values: torch.Tensor) -> Metric:
    """The greatest of the values that are not NaN, of any shape."""
    values = _without_nan(values)
    greatest = values.max() if values.numel() else values.new_tensor(-math.inf)
    return Metric(kind="max", total=greatest, count=torch.ones_like(greatest))


def sequence_means(values: torch.Tensor, *, mask: torch.Tensor) -> torch.Tensor:
    """[B]: each sequence's mean of `values` under `mask`, NaN for a sequence without tokens. Values [B, 1]
    are returned as they are."""
    if values.shape[1] == 1 and mask.shape[1] != 1:
        return values.detach().squeeze(1)
    return torch.where(mask, values.detach(), 0.0).sum(-1) / mask.sum(-1)


def merge_metrics(parts: list[Metrics]) -> Metrics:
    """The metrics of several micro-batches of one rank as one."""
    merged: Metrics = {}
    for part in parts:
        for name, metric in part.items():
            merged[name] = _merge(merged[name], metric) if name in merged else metric
    return merged


def reduce_metrics(metrics: Metrics, *, group: torch.distributed.ProcessGroup | None = None) -> Metrics:
    """The metrics of all ranks together, on every rank. Every rank has to call it, with the same names."""
    names = sorted(metrics)
    reduced: Metrics = {}
    for kind, operation in (
        ("mean", torch.distributed.ReduceOp.SUM),
        ("min", torch.distributed.ReduceOp.MIN),
        ("max", torch.distributed.ReduceOp.MAX),
    ):
        chosen = [name for name in names if metrics[name].kind == kind]
        if not chosen:
            continue
        packed = torch.stack([torch.stack([metrics[n].total, metrics[n].count]).double() for n in chosen])
        torch.distributed.all_reduce(packed, op=operation, group=group)
        for name, (total, count) in zip(chosen, packed, strict=True):
            reduced[name] = Metric(kind=metrics[name].kind, total=total, count=count)
    return reduced


def metric_values(metrics: Metrics) -> dict[str, float]:
    """The numbers to report. A metric without any value is left out, so the result holds no NaN."""
    values = {}
    for name, metric in metrics.items():
        total = float(metric.total)
        if metric.kind == "mean":
            total = total / float(metric.count) if metric.count else math.nan
        if math.isfinite(total):
            values[name] = total
    return values


def _merge(a: Metric, b: Metric) -> Metric:
    if a.kind == "mean":
        return Metric(kind="mean", total=a.total + b.total, count=a.count + b.count)
    extreme = torch.minimum if a.kind == "min" else torch.maximum
    return Metric(kind=a.kind, total=extreme(a.total, b.total), count=a.count)


def _without_nan(values: torch.Tensor) -> torch.Tensor:
    values = values.detach().flatten()
    return values[~torch.isnan(values)]

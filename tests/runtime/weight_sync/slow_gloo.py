"""Gloo in an engine that takes long for every buffer, as over a slow wire. The trainer uses plain Gloo."""

import time

import torch
from torch.distributed import Store

from grpo_runtime.weight_sync.network.gloo import GlooGroup, GlooWork
from grpo_runtime.weight_sync.network.group import Invite
from grpo_runtime.weight_sync.network.meeting import MemberPlace
from grpo_runtime.weight_sync.registry import group_backend

SECONDS_A_BUFFER = 1.2


class SlowGroup(GlooGroup):
    """Takes every buffer late."""

    def broadcast(self, buffer: torch.Tensor, *, timeout_seconds: float) -> GlooWork:
        time.sleep(SECONDS_A_BUFFER)
        return super().broadcast(buffer, timeout_seconds=timeout_seconds)


def _slow_in_company(store: Store, place: MemberPlace, *, own_address: str, invite: Invite) -> GlooGroup:
    kind = GlooGroup if place.size == 2 else SlowGroup
    return kind(store, place, own_address=own_address, invite=invite)


SLOW_GLOO = group_backend("slow-gloo", SlowGroup)
CROWDED_GLOO = group_backend("crowded-gloo", _slow_in_company)
"""Only as slow when another engine shares the transfer."""

"""Gloo in an engine that takes long for every buffer, as over a slow wire. The trainer uses plain Gloo."""

import time

import torch
from torch.distributed import Store

from grpo_runtime.weight_sync.gloo import GlooGroup, GlooWork, gloo_backend
from grpo_runtime.weight_sync.group import GroupMember, Invite

SECONDS_A_BUFFER = 1.2


class SlowGroup(GlooGroup):
    """Takes every buffer late."""

    def broadcast(self, buffer: torch.Tensor, *, timeout_seconds: float) -> GlooWork:
        time.sleep(SECONDS_A_BUFFER)
        return super().broadcast(buffer, timeout_seconds=timeout_seconds)


def _slow_in_company(store: Store, member: GroupMember, *, own_address: str, invite: Invite) -> GlooGroup:
    kind = GlooGroup if member.size == 2 else SlowGroup
    return kind(store, member, own_address=own_address, invite=invite)


SLOW_GLOO = gloo_backend("slow-gloo", join=SlowGroup)
CROWDED_GLOO = gloo_backend("crowded-gloo", join=_slow_in_company)
"""Only as slow when another engine shares the transfer."""

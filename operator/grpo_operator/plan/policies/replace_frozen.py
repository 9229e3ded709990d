"""Policy: of the engines that have stood still for long, one is replaced as a pod, and the job says why.

It takes nothing from the job: the engine does no work, and its requests went to others when it was found.
"""

from dataclasses import replace
from datetime import datetime

from grpo_api.contract.endpoints import ROLLOUT_CONTAINER
from grpo_api.contract.environment import Role
from grpo_api.contract.reasons import Reason, ReasonMessage
from grpo_operator.observe.observed import Observed
from grpo_operator.plan.draft import Draft, Stage
from grpo_operator.plan.frozen_engines import seconds_until_replaced, standstills
from grpo_operator.plan.last_failure import Place, last_failure


def replace_frozen(draft: Draft, observed: Observed, now: datetime) -> Draft:
    """Give up the engine that has stood still for longest, once that has lasted, with all its pods: the
    policy of the replicas then deletes them and makes others. The cause is in lastFailure before they go."""
    if draft.stage is not Stage.ACTIVE or draft.frozen is None or draft.is_held_back:
        return draft
    found = next(iter(standstills(draft, observed)), None)
    if found is None:
        return draft
    wait = seconds_until_replaced(found, observed, now)
    if wait > 0:
        return draft.waking_after(wait)
    why = ReasonMessage(Reason.ENGINE_FROZEN, found.cause)
    failure = last_failure(
        why,
        attempt=draft.status.attempt,
        place=Place(Role.ROLLOUT, found.told.name, found.node, ROLLOUT_CONTAINER),
    )
    given_up = {found.engine.uid: found.cause}
    return replace(draft.with_status(last_failure=failure), given_up_engines=given_up)

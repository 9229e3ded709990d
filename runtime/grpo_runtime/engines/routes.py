"""Every route of a rollout pod. What is not in these tables answers 404, even if vLLM serves it.

vLLM's RL routes exist only in its development mode, which also mounts routes that run arbitrary code.
"""

from enum import StrEnum

from grpo_api.contract.endpoints import ROLLOUT_LIVE_PATH, ROLLOUT_READY_PATH

ATTEMPT_HEADER = "x-grpo-attempt"
"""Header of every admin call: the attempt of the trainer that calls. A lower one than seen before gets
409."""
INSTANCE_HEADER = "x-grpo-instance"
"""Header of any call that is meant for one process: every other process answers 409, also its successor."""

SAMPLE_PATH = "/grpo/v1/sample"
"""An `EngineCall` in, a completion out for each of its `n`, in the order of their seeds: frames."""
LOGPROBS_PATH = "/grpo/v1/logprobs"
"""An `EngineCall` in; out one frame with `logprobs` (nats, temperature 1) of the tokens after the first."""
HAND_OVER_PATH = "/grpo/v1/hand_over"
"""Calls for completions are answered at once, with what there is of each."""
IDENTITY_PATH = "/grpo/v1/identity"
ADMIT_PATH = "/grpo/v1/admit"
REVOKE_PATH = "/grpo/v1/revoke"

PAUSE_PATH = "/pause"
RESUME_PATH = "/resume"
IS_PAUSED_PATH = "/is_paused"
METRICS_PATH = "/metrics"
INIT_PATH = "/init_weight_transfer_engine"
START_PATH = "/start_weight_update"
UPDATE_PATH = "/update_weights"
FINISH_PATH = "/finish_weight_update"
SHUTDOWN_PATH = "/shutdown_weight_transfer_engine"
WEIGHT_INFO_PATH = "/weight_info"


class Access(StrEnum):
    """Who may call a route."""

    OPEN = "open"
    DATA = "data"
    ADMIN = "admin"


OWN_ROUTES = {
    ("GET", ROLLOUT_LIVE_PATH): Access.OPEN,
    ("GET", ROLLOUT_READY_PATH): Access.OPEN,
    ("GET", IDENTITY_PATH): Access.ADMIN,
    ("POST", SAMPLE_PATH): Access.DATA,
    ("POST", LOGPROBS_PATH): Access.ADMIN,
    ("POST", HAND_OVER_PATH): Access.ADMIN,
    ("POST", ADMIT_PATH): Access.ADMIN,
    ("POST", REVOKE_PATH): Access.ADMIN,
}
"""Answered by the guard itself. Those that ask the engine for nothing are answered also while a weight
update blocks it."""

ENGINE_ROUTES = {
    ("POST", PAUSE_PATH): Access.ADMIN,
    ("POST", RESUME_PATH): Access.ADMIN,
    ("GET", IS_PAUSED_PATH): Access.ADMIN,
    ("GET", METRICS_PATH): Access.ADMIN,
    ("POST", INIT_PATH): Access.ADMIN,
    ("POST", START_PATH): Access.ADMIN,
    ("POST", UPDATE_PATH): Access.ADMIN,
    ("POST", FINISH_PATH): Access.ADMIN,
    ("POST", SHUTDOWN_PATH): Access.ADMIN,
    ("GET", WEIGHT_INFO_PATH): Access.ADMIN,
}
"""Passed on to vLLM."""

ROUTES = OWN_ROUTES | ENGINE_ROUTES

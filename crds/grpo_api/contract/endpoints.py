"""Ports and paths that one side serves and the other calls."""

TRAINER_PORT = 8780
"""The supervisor's HTTP port: progress, metrics, health."""
RENDEZVOUS_PORT = 29500
"""torch.distributed's static rendezvous on trainer pod 0."""
ROLLOUT_PORT = 8000
"""vLLM behind the guard."""

PROGRESS_PATH = "/progress"
POSITIONS_PATH = "/positions"
"""Where the training processes of the pod are, for the supervisor of trainer pod 0."""
METRICS_PATH = "/metrics"
TRAINER_HEALTH_PATH = "/healthz"
"""200 while the supervisor runs, also when training hangs."""

ROLLOUT_LIVE_PATH = "/grpo/v1/live"
"""200 while the engine process can serve, also while a weight update blocks the engine."""
ROLLOUT_READY_PATH = "/grpo/v1/ready"
"""200 once a trainer has admitted the engine, until the engine restarts or its admission is revoked."""

DATA_TOKEN_FILE = "data-token"  # noqa: S105 - a file name
ADMIN_TOKEN_FILE = "admin-token"  # noqa: S105 - a file name

TRAINER_CONTAINER = "trainer"
ROLLOUT_CONTAINER = "engine"
"""Names of the containers, as in status.lastFailure.container."""

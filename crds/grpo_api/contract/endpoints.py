"""Ports, paths, files and names in the pods by which one side finds what the other provides."""

TRAINER_PORT = 8780
"""The supervisor's HTTP port: progress, metrics, health, and the page of the run for clients in the pod."""
RENDEZVOUS_PORT = 29500
"""torch.distributed's static rendezvous on trainer pod 0."""
ROLLOUT_PORT = 8000
"""vLLM behind the guard."""

PROGRESS_PATH = "/progress"
ENGINES_PARAMETER = "engines"
"""In a query of /progress: how many engines the job asks for now. A trainer knows only of its beginning."""
POSITIONS_PATH = "/positions"
"""What each training process of the pod is doing, for the supervisor of trainer pod 0."""
METRICS_PATH = "/metrics"
REPORT_PATH = "/report"
SAMPLES_PATH = "/samples"
"""The page of the run and completions as text, of trainer pod 0, for clients inside the pod only: whoever may
forward its port is one."""
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

HEARTBEAT_FILE = "/dev/shm/grpo-heartbeat"  # noqa: S108 - an emptyDir of the pod
"""The file that the supervisor of a trainer pod touches, and at whose age the liveness probe looks. It is in
memory, where a slow disk cannot block it."""
HEARTBEAT_SECONDS = 5
"""How often the supervisor touches it."""
HEARTBEAT_STALE_SECONDS = 60
"""Age from which the probe counts the supervisor as hung."""

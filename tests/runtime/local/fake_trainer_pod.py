"""A trainer pod that trains nothing: it keeps to the contract, and does what FAKE_ATTEMPTS says of its
attempt.

FAKE_ATTEMPTS is JSON: attempt -> what it does after `steps` steps of its own. With `exit` it ends with that
code, after it saved a checkpoint unless `lost`. With `hold` it waits for SIGTERM, which it ignores with
`ignores_sigterm`. With `saves_at` it saves only when that file of its output exists. An attempt that is not
named finishes the job. It begins where the job of `resumeFrom` stopped.
"""

import argparse
import json
import os
import select
import signal
import sys
import time
from pathlib import Path

options = argparse.ArgumentParser()
options.add_argument("--termination-log", type=Path)
LOG = options.parse_known_args()[0].termination_log
OUTPUT, CACHE = Path(os.environ["GRPO_OUTPUT_DIR"]), Path(os.environ["GRPO_CACHE_DIR"])
ATTEMPT, INDEX = int(os.environ["GRPO_ATTEMPT"]), int(os.environ["GRPO_NODE_INDEX"])
CONFIG = json.loads(Path(os.environ["GRPO_RUN_CONFIG"]).read_text())
UID, TOTAL = CONFIG["job"]["uid"], CONFIG["algorithm"]["steps"]
PLAN = json.loads(os.environ.get("FAKE_ATTEMPTS", "{}")).get(str(ATTEMPT), {})
LATEST = OUTPUT / "checkpoints" / "LATEST"
RESUME = CONFIG.get("resumeFrom")
LOADED = None
"""Step of the checkpoint of another job, where this one begins with it."""
if RESUME and not LATEST.exists():
    other = Path(RESUME["source"].removeprefix("file://")) / "checkpoints/LATEST"
    LOADED = int(other.read_text().strip().removeprefix("step-"))
MAIN_OUTPUT = Path(os.environ["GRPO_RUN_CONFIG"]).parent
STOP_READ, STOP_WRITE = os.pipe()
"""Written to by the signal handler, which must not take a lock: what it interrupts may hold it."""


def is_stopped(seconds: float | None = 0.0) -> bool:
    """Whether it is asked to stop within so long; None is without end."""
    return bool(select.select([STOP_READ], [], [], seconds)[0])


def stop(*_: object) -> None:
    if not PLAN.get("ignores_sigterm"):
        os.write(STOP_WRITE, b"x")


def end(code: int, reason: str, message: str, *, is_effect: bool = False) -> None:
    written = {"schemaVersion": 1, "reason": reason, "message": message, "exitCode": code, "rank": 0}
    LOG.write_text(json.dumps({**written, "isEffect": is_effect}))
    sys.exit(code)


def report(step: int, resumed: int | None, *, saved: int | None = None, state: str = "Training") -> None:
    text = {
        "jobUid": UID,
        "attempt": ATTEMPT,
        "state": state,
        "step": step,
        "totalSteps": TOTAL,
        "heartbeat": step,
        "resumedFromStep": resumed,
        "checkpointStep": saved,
        "loadedStep": LOADED,
    }
    path = CACHE / "run" / "progress.json"
    path.with_suffix(".new").write_text(json.dumps(text))
    path.with_suffix(".new").rename(path)


def save(step: int) -> None:
    LATEST.parent.mkdir(parents=True, exist_ok=True)
    LATEST.write_text(f"step-{step:06d}\n")


def log_step(step: int) -> None:
    values = {"reward": step / TOTAL, "step_time": 0.01, "tokens_per_second": 1000.0}
    with (OUTPUT / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({**values, "attempt": ATTEMPT, "step": step, "time": time.time()}) + "\n")


signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, lambda *_: print("heard SIGINT", flush=True))
OUTPUT.mkdir(parents=True, exist_ok=True)
(CACHE / "run").mkdir(parents=True)
if INDEX == 0:
    variables = {name: value for name, value in os.environ.items() if name.startswith("GRPO_")}
    (OUTPUT / f"variables-{ATTEMPT}.json").write_text(json.dumps(variables))
    (OUTPUT / f"gpus-{ATTEMPT}").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
    resumed = int(LATEST.read_text().strip().removeprefix("step-")) if LATEST.exists() else LOADED
    for own, step in enumerate(range((resumed or 0) + 1, TOTAL + 1)):
        while own == PLAN.get("steps") and PLAN.get("hold") and not is_stopped(0.02):
            pass
        if is_stopped():
            while "saves_at" in PLAN and not (OUTPUT / PLAN["saves_at"]).exists():
                time.sleep(0.01)
            save(step - 1)
            end(143, "Terminated", "asked to stop, and stopped at a step boundary")
        if own == PLAN.get("steps") and "exit" in PLAN:
            if not PLAN.get("lost"):
                save(step - 1)
                report(step - 1, resumed, saved=step - 1)
            end(
                PLAN["exit"],
                PLAN.get("reason", "FakeReason"),
                PLAN.get("message", "the fake was told to fail"),
            )
        log_step(step)
        report(step, resumed, saved=resumed)
    report(TOTAL, resumed, saved=resumed, state="Done")
    end(0, "Done", "training is done")
if PLAN.get("peer_exit"):
    while not (MAIN_OUTPUT / "checkpoints" / "LATEST").exists():  # the last thing trainer 0 does
        time.sleep(0.01)
    end(PLAN["peer_exit"], "PeerLost", "another node is gone", is_effect=True)
if PLAN:
    is_stopped(None)
end(143 if is_stopped() else 0, "Terminated" if is_stopped() else "Done", "")

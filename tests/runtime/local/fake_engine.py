"""An engine that serves nothing: it writes each start to the file FAKE_ENGINES and does what FAKE_ENGINE
says.

FAKE_ENGINE is JSON: number of the start, from 1 -> the exit code with which it ends at once.
"""

import argparse
import json
import os
import signal
import sys
from pathlib import Path

options = argparse.ArgumentParser()
options.add_argument("--port", type=int)
options.add_argument("--termination-log", type=Path)
given = options.parse_known_args()[0]
starts = Path(os.environ["FAKE_ENGINES"])
variables = {name: value for name, value in os.environ.items() if name.startswith("GRPO_")}
with starts.open("a") as file:
    own = {"port": given.port, "pid": os.getpid(), "gpus": os.environ["CUDA_VISIBLE_DEVICES"]}
    file.write(json.dumps({**own, "variables": variables}) + "\n")
start = len(starts.read_text().splitlines())
code = json.loads(os.environ.get("FAKE_ENGINE", "{}")).get(str(start))
if code is not None:
    message = {"schemaVersion": 1, "reason": "UserError", "message": "vLLM refuses --speed", "exitCode": code}
    given.termination_log.write_text(json.dumps(message))
    sys.exit(code)
signal.pause()

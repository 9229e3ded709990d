"""An engine that serves nothing: it notes each start in FAKE_ENGINES and does what FAKE_ENGINE says.

FAKE_ENGINE is JSON: number of the start, from 1 -> the exit code it ends with at once.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

options = argparse.ArgumentParser()
options.add_argument("--port", type=int)
options.add_argument("--termination-log", type=Path)
given = options.parse_known_args()[0]
notes = Path(os.environ["FAKE_ENGINES"])
told = {name: value for name, value in os.environ.items() if name.startswith("GRPO_")}
with notes.open("a") as file:
    file.write(json.dumps({"port": given.port, "pid": os.getpid(), "told": told}) + "\n")
start = len(notes.read_text().splitlines())
code = json.loads(os.environ.get("FAKE_ENGINE", "{}")).get(str(start))
if code is not None:
    words = {"schemaVersion": 1, "reason": "UserError", "message": "vLLM refuses --speed", "exitCode": code}
    given.termination_log.write_text(json.dumps(words))
    sys.exit(code)
time.sleep(60)

"""A worker whose code does what it should not: `python -m scripted_worker CONFIG PARENT`. Each request has
`writes`, a text that it puts on its pipe in Latin-1, so many `times`; or `ends`, a signal that ends it."""

import json
import os
import sys


def main() -> None:
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        script = request.get("begin", request)
        if "ends" in script:
            os.kill(os.getpid(), script["ends"])
        for _ in range(script.get("times", 1)):
            sys.stdout.buffer.write(script.get("writes", "").encode("latin-1"))
        sys.stdout.flush()


if __name__ == "__main__":
    main()

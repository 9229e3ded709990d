#!/usr/bin/env -S python3 -SE
"""A fake kubectl: answers each call from answers.json beside it, and writes down in calls.jsonl that it came.

An answer is {words, stdout, stderr, code, port}, for calls whose arguments hold all of its words. With a port
it forwards that port until it is asked to end, which `ended` then shows.
"""

import json
import signal
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def main(arguments: list[str]) -> int:
    with (FOLDER / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps(arguments) + "\n")
    for answer in json.loads((FOLDER / "answers.json").read_text()):
        if all(any(word in each for each in arguments) for word in answer["words"]):
            return give(answer)
    print(f"error: the fake has no answer to {arguments}", file=sys.stderr)
    return 1


def give(answer: dict) -> int:
    if "port" in answer:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        print(f"Forwarding from 127.0.0.1:{answer['port']} -> 8780", flush=True)
        signal.sigwait({signal.SIGTERM})
        (FOLDER / "ended").touch()
        return 0
    sys.stdout.write(answer.get("stdout", ""))
    sys.stderr.write(answer.get("stderr", ""))
    return answer.get("code", 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Programs of the tests, as users write them: `python program_examples.py NAME`."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path


def ask(content, **client):
    return PlainClient(**client).ask([{"role": "user", "content": content}])


def guesses(task):
    """A game: the policy guesses until it has the number, at most three times."""
    from openai import OpenAI

    messages = [{"role": "user", "content": task["prompt"]}]
    for _ in range(3):
        answer = OpenAI().chat.completions.create(model=os.environ["OPENAI_MODEL"], messages=messages)
        guess = answer.choices[0].message.content
        if guess == task["columns"]["high"]:
            print("guessed", flush=True)
            return 1
        messages += [{"role": "assistant", "content": guess}, {"role": "user", "content": "higher"}]
    return 0


def judges(task):
    """The judge has the other key."""
    said = ask(task["prompt"])
    print(said)
    judged = ask(f"Score {said}.", key="UNTRAINED_API_KEY")
    return {"reward": float(judged), "state": {"sample": task["sample_index"]}}


def notes(task):
    """It ends once as many have begun as it waits for."""
    path = Path(task["columns"]["notes"])
    with path.open("a") as file:
        file.write("+")
    while path.read_text().count("+") < task["columns"]["ends_behind"]:
        time.sleep(0.02)
    ask(task["prompt"])
    with path.open("a") as file:
        file.write("-")


def fails(task):
    print("." * 2000)
    print("asks", os.environ["OPENAI_API_KEY"])
    ask(task["prompt"])
    raise ValueError("the board is away")


def goes_on(task):
    """Until it is refused, of which it knows nothing."""
    while True:
        print("asks")
        ask(task["prompt"])


def waits(task):
    """With a child, and one that has left its session, whose numbers it writes into the file `pids`."""
    ask(task["prompt"])
    child = subprocess.Popen(["sleep", "300"])
    leaves = ["sh", "-c", "setsid sleep 300 >/dev/null 2>&1 & echo $!"]
    left = subprocess.run(leaves, check=True, capture_output=True, text=True).stdout
    print("waits", flush=True)
    Path(task["columns"]["pids"]).write_text(f"{os.getpid()}\n{child.pid}\n{left}")
    time.sleep(300)


def replays_tool_calling_agent(task):
    """The requests of smolagents' ToolCallingAgent: a turn comes back as another text."""
    first = [{"role": "user", "content": [{"type": "text", "text": task["prompt"]}]}]
    said = PlainClient().ask(first)
    call = f"Calling tools:\n[{{'id': '1', 'function': {{'name': 'final_answer', 'arguments': '{said}'}}}}]"
    told = [{"role": "assistant", "content": call}, {"role": "user", "content": "Observation:\n46"}]
    PlainClient().ask([*first, *told])


def replays_code_agent(task):
    """Those of its CodeAgent: a turn comes back stripped, with more in it."""
    first = [{"role": "user", "content": task["prompt"]}]
    said = PlainClient().ask(first).strip()
    call = f"{said}</code>\nCalling tools:\n[{{'id': '1', 'function': {{'name': 'python_interpreter'}}}}]"
    told = [{"role": "assistant", "content": call}, {"role": "user", "content": "Observation:\n46"}]
    PlainClient().ask([*first, *told])


def writes(task):
    """More than anybody keeps."""
    ask(task["prompt"])
    for _ in range(100):
        os.write(1, b"x" * 65536)
        os.write(2, b"y" * 65536)
    print()
    return 0.5


class PlainClient:
    """A client that begins at once: importing openai takes longer than all else that these programs do."""

    def __init__(self, key="OPENAI_API_KEY"):
        self.headers = {"Authorization": f"Bearer {os.environ[key]}"}

    def ask(self, messages):
        url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
        request = urllib.request.Request(url, json.dumps({"messages": messages}).encode(), self.headers)  # noqa: S310
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            return json.load(answer)["choices"][0]["message"]["content"]


if __name__ == "__main__":
    found = globals()[sys.argv[1]](json.load(sys.stdin))
    if found is not None:
        print(json.dumps(found))

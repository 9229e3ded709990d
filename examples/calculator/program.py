"""The same by a program of its own, with openai's plain client: docs/guides/agents.md."""

import json
import sys

from calculator import compute
from openai import OpenAI

task = json.load(sys.stdin)
client = OpenAI()
messages = [{"role": "user", "content": task["prompt"]}]
said = ""
for _ in range(2):
    message = client.chat.completions.create(model="policy", messages=messages).choices[0].message
    said += message.content
    if not message.content.endswith("="):
        break
    result = compute(task["prompt"] + said)
    said += result
    messages += [message, {"role": "user", "content": result}]
print(float(said == task["columns"]["answer"]))

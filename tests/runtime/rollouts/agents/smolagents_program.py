"""smolagents' two agents as its users write them, in a program that knows nothing of training:
`python smolagents_program.py NAME`."""

import json
import sys

from smolagents import CodeAgent, OpenAIServerModel, ToolCallingAgent, tool


@tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


kind = {"ToolCallingAgent": ToolCallingAgent, "CodeAgent": CodeAgent}[sys.argv[1]]
agent = kind(tools=[add], model=OpenAIServerModel(model_id="policy"), max_steps=3, verbosity_level=0)
print(json.dumps({"reward": float(str(agent.run(json.load(sys.stdin)["prompt"])) == "46")}))

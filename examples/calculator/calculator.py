"""A calculator for the policy: what it writes before an `=` is computed, and it goes on behind the result."""

import ast
import operator
import re

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


async def with_calculator(conversation):
    """One completion. `sampling.stop` ends a turn behind an `=`, so whatever else ends a turn ends it all."""
    said = ""
    while not said.endswith("\n"):
        turn = await conversation.sample()
        said += turn.text
        if not turn.text.endswith("="):
            return
        result = compute(conversation.prompt + said)
        # text that the policy did not say: it reads it, and is not trained on it
        conversation.add(result)
        said += result


async def agent(client, prompt):
    """The same by a client of OpenAI's API, which knows nothing of tokens: docs/guides/agents.md."""
    messages = [{"role": "user", "content": prompt}]
    said = ""
    while True:
        answer = await client.chat.completions.create(model="policy", messages=messages)
        choice = answer.choices[0]
        said += choice.message.content
        if not choice.message.content.endswith("="):
            return
        result = compute(prompt + said)
        said += result
        messages += [choice.message, {"role": "user", "content": result}]


class Calculator:
    """The same as a tool, as for TRL's `environment_factory`: docs/guides/agents.md."""

    def reset(self, answer):
        """Begin with a row of the dataset."""
        self.answer, self.result = answer.removeprefix("="), None

    def calculate(self, expression: str) -> str:
        """Compute an expression of integers with +, - and *.

        Args:
            expression: Such as 12*(3+4).
        """
        self.result = str(value(ast.parse(expression, mode="eval").body))
        return self.result

    def get_reward(self):
        """Whether the last result is the answer."""
        return float(self.result == self.answer)


def last_result_is_right(trajectories, answer, **_):
    """A reward for tools that return none: whether the last that a tool said is the answer."""
    rewards = []
    for trajectory, wanted in zip(trajectories, answer, strict=True):
        said = [message["content"] for message in trajectory["chats"][-1] if message["role"] == "tool"]
        rewards.append(float(said[-1:] == [wanted.removeprefix("=")]))
    return rewards


def compute(text):
    """The value of the expression before the last `=`, or a question mark."""
    expression = re.search(r"[0-9+*-]*=$", text).group()[:-1]
    try:
        return str(value(ast.parse(expression, mode="eval").body))
    except (SyntaxError, ValueError, RecursionError):
        return "?"


def value(node):
    """Of an expression of integers, +, - and *; raises ValueError for all else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value < 10**6:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](value(node.left), value(node.right))
    raise ValueError("no arithmetic")

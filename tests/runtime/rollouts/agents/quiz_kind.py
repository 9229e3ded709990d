"""An environment of a kind that only a test knows: it asks one question."""

import sys
from collections.abc import Mapping
from typing import Any

from grpo_runtime.rollouts.agents.worker import Episode, serve_episodes


class Quiz:
    def __init__(self, config: Mapping[str, Any]) -> None:
        self._question = config["question"]
        self._answer = ""
        self.is_closed = False

    async def start(self) -> None:
        self._answer = "4"

    async def play(self, episode: Episode) -> Mapping[str, Any]:
        messages = [{"role": "user", "content": self._question}]
        answer = await episode.client.chat.completions.create(model="policy", messages=messages)  # type: ignore[arg-type]
        return {"reward": float(answer.choices[0].message.content == self._answer), "state": None}

    async def close(self) -> None:
        self.is_closed = True


if __name__ == "__main__":
    sys.exit(serve_episodes(sys.argv[1:], load=Quiz))

"""A trainer that is killed in the middle of a transfer to a real engine. Arguments: folder, port, attempt."""

import asyncio
import os
import sys
from pathlib import Path

from receiver_harness import AlteredCopy, OneEngineSender, accident, kill_self
from weight_sources import FixedWeights

from grpo_runtime.engines.fleet.engine_client import Address, EngineClient, HttpChannel, open_session
from grpo_runtime.model.load import load_policy
from grpo_runtime.model.weights import named_weights
from grpo_runtime.settings import Tokens


async def main(model_dir: Path, port: int, attempt: int) -> None:
    policy = load_policy(model_dir, dtype="float32")
    source = FixedWeights((name, tensor + 1) for name, tensor in named_weights(policy))
    weights = AlteredCopy(source, alter=accident(kill_self, before=5), buffer_bytes=8192)
    tokens = Tokens(data=os.environ["DATA_TOKEN"], admin=os.environ["ADMIN_TOKEN"])
    async with open_session() as session:
        client = EngineClient(session, Address("127.0.0.1", port), tokens=tokens, attempt=attempt)
        await client.pause(mode="keep", clears_cache=True, timeout_seconds=10)
        channel = HttpChannel(client, timeout_seconds=10)
        sender = OneEngineSender("gloo", channel, timeout_seconds=10)
        await sender.init()
        await sender.start()
        await sender.update(weights)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))

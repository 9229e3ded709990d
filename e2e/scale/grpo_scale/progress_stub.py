"""Answers /progress for every trainer pod of the fake nodes: a trainer that is alive and stays at one step.

It listens on all addresses of the cluster's network. The address that it was called on says which pod is
meant.
"""

import asyncio
import itertools
import json
import ssl
import sys

import aiohttp
from aiohttp import web

from grpo_api.contract.endpoints import PROGRESS_PATH, TRAINER_PORT
from grpo_api.contract.environment import Role
from grpo_api.contract.labels import ATTEMPT, JOB_UID, ROLE
from grpo_api.contract.progress import EngineCounts, Progress, TrainerState

_HEARTBEATS = itertools.count(1)


class Stub:
    """The reports, by address of the pod."""

    def __init__(self, session: aiohttp.ClientSession, server: str) -> None:
        self._session = session
        self._server = server
        self._known: dict[str, Progress] = {}

    async def report(self, request: web.Request) -> web.Response:
        """The progress of the trainer that has the address."""
        assert request.transport is not None
        address = request.transport.get_extra_info("sockname")[0]
        if address not in self._known:
            raise web.HTTPNotFound(text=f"no trainer pod has the address {address}")
        alive = self._known[address].model_copy(update={"heartbeat": next(_HEARTBEATS)})
        return web.Response(text=alive.model_dump_json(by_alias=True), content_type="application/json")

    async def follow_pods(self) -> None:
        """Learn the addresses of the trainer pods. Ends the process when the watch ends."""
        query = {"watch": "true", "labelSelector": f"{ROLE}={Role.TRAINER}", "timeoutSeconds": "36000"}
        async with self._session.get(f"{self._server}/api/v1/pods", params=query) as stream:
            async for line in stream.content:
                pod = json.loads(line)["object"]
                address = pod.get("status", {}).get("podIP")
                if address:
                    self._known[address] = _progress(pod["metadata"]["labels"])
        raise SystemExit("the watch of the trainer pods has ended")


def _progress(labels: dict[str, str]) -> Progress:
    return Progress(
        job_uid=labels[JOB_UID],
        attempt=int(labels[ATTEMPT]),
        state=TrainerState.TRAINING,
        step=10,
        total_steps=200,
        reward=0.5,
        engines=EngineCounts(desired=2, known=2, current=2),
    )


async def _serve(server: str, authority: str, certificate: str, key: str) -> None:
    tls = ssl.create_default_context(cafile=authority)
    tls.load_cert_chain(certificate, key)
    connector, timeout = aiohttp.TCPConnector(ssl=tls), aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=2**22) as session:
        stub = Stub(session, server)
        application = web.Application()
        application.router.add_get(PROGRESS_PATH, stub.report)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, port=TRAINER_PORT).start()
        await stub.follow_pods()


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))

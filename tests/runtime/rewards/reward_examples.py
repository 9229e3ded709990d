"""Reward functions as users write them, right and wrong. Tests put this folder on the workers' PYTHONPATH."""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

REQUEST: dict[str, Any] = {
    "prompts": ["a=", "b="],
    "completions": ["x", "xxxx"],
    "completion_ids": [[1], [1, 1, 1, 1]],
    "prefills": [],
    "returned": [],
    "trajectories": [],
    "columns": {"answer": ["x", "y"]},
    "step": 0,
    "total_steps": 1,
}
"""A call of one of them for two completions."""
NOT_A_FUNCTION = 7


def length(completions: list[str], **_: Any) -> list[float]:
    return [float(len(completion)) for completion in completions]


async def slow_length(completions: list[str], **_: Any) -> list[float]:
    await asyncio.sleep(0.01)
    return [float(len(completion)) for completion in completions]


def everything_trl_passes(
    *, prompts, completions, completion_ids, trainer_state, log_metric, log_extra, answer, level, **others
):
    # which TRL does not have
    assert others == {"prefills": ["", ""], "returned": [None, None], "trajectories": [None, None]}
    log_extra("first", [completion[:1] for completion in completions])
    log_metric("seen/level", level[0])
    log_metric("seen/level", level[1])
    assert len(prompts) == len(completions) == len(completion_ids) == len(answer)
    return [trainer_state.global_step + trainer_state.max_steps / 1000 + len(ids) for ids in completion_ids]


def takes_no_extras(prompts, completions):
    return [
        float(completion.startswith(prompt)) for prompt, completion in zip(prompts, completions, strict=True)
    ]


def notes_what_it_read(completions, log_extra):
    log_extra("read", [int(completion) if completion.isdigit() else None for completion in completions])
    return [float(completion.isdigit()) for completion in completions]


def chat_length(completions, **_):
    return [float(len(message["content"])) for (message,) in completions]


def only_some(completions, **_):
    return [1.0 if completion == "yes" else None for completion in completions]


def noisy(completions, **_):
    print("from Python, with no new line", end="")
    os.write(1, b'{"rewards": [9, 9]}\n')
    subprocess.run(["echo", "from a child"], check=True)
    assert sys.stdin.read() == ""
    return [1.0] * len(completions)


def raises_on_no(completions, **_):
    if "no" in completions:
        raise RuntimeError("I will not")
    return [1.0] * len(completions)


def hangs_on_no(completions, child_file, **_):
    if "no" in completions:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(child_file[0]).write_text(str(child.pid))
        time.sleep(600)
    return [1.0] * len(completions)


def dies_on_no(completions, **_):
    if "no" in completions:
        os._exit(3)
    return [1.0] * len(completions)


def too_few(completions, **_):
    return [1.0] * (len(completions) - 1)


def no_list(completions, **_):
    return 1.0


class RaisesInFloat:
    def __float__(self):
        raise RuntimeError("I am no number")


def rubbish(completions, **_):
    values = ["high", float("inf"), float("nan"), [1.0], True, None, 10**400, 1e39, RaisesInFloat()]
    return values[: len(completions)]


def dies_in_mid_answer_on_no(completions, **_):
    if "no" in completions:
        for descriptor in range(3, 16):
            with contextlib.suppress(OSError):
                os.write(descriptor, b'{"rewards": [1.')
        os._exit(3)
    return [1.0] * len(completions)


def writes_its_pid_and_hangs(completions, *, pid_file, **_):
    partial = Path(pid_file[0]).with_suffix(".partial")
    partial.write_text(str(os.getpid()))
    partial.rename(pid_file[0])
    time.sleep(3600)


def within_the_group(completions, *, log_metric, **_):
    mean = sum(map(len, completions)) / len(completions)
    for completion in completions:
        log_metric("group/length", len(completion))
    return [len(completion) - mean for completion in completions]


def meets_another(completions, *, folder, **_):
    """Returns once two processes are in a call at the same time."""
    own = Path(folder[0], str(os.getpid()))
    own.touch()
    while len(list(Path(folder[0]).iterdir())) < 2:
        time.sleep(0.01)
    return [float(os.getpid())] * len(completions)


GATE = asyncio.Semaphore(1)


async def one_at_a_time(completions, **_):
    """Its semaphore is of the module, and calls wait for it."""

    async def score(completion):
        async with GATE:
            await asyncio.sleep(0)
            return float(len(completion))

    return await asyncio.gather(*map(score, completions))


QUEUE: asyncio.Queue[tuple[str, asyncio.Future[float]]] = asyncio.Queue()
TASKS: list[asyncio.Task[None]] = []


async def answer_queue():
    while True:
        completion, reward = await QUEUE.get()
        reward.set_result(float(len(completion)))


async def by_a_task_that_lives_on(completions, **_):
    if not TASKS:
        TASKS.append(asyncio.create_task(answer_queue()))
    rewards = [asyncio.get_running_loop().create_future() for _ in completions]
    for asked in zip(completions, rewards, strict=True):
        QUEUE.put_nowait(asked)
    return await asyncio.gather(*rewards)


async def leaves_a_server(completions, **_):
    """Gives its port as the reward; it answers every client."""

    async def answer(_, writer):
        writer.write(b"here")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    TASKS.append(asyncio.create_task(server.serve_forever()))
    return [float(server.sockets[0].getsockname()[1])] * len(completions)


async def awaits_what_is_cancelled_on_no(completions, **_):
    if "no" in completions:
        cancelled = asyncio.get_running_loop().create_future()
        cancelled.cancel()
        await cancelled
    return [float(os.getpid())] * len(completions)


def runs_a_loop_of_its_own(completions, **_):
    assert threading.current_thread() is threading.main_thread()
    return asyncio.run(slow_length(completions))


def wants_solution(completions, solution):
    return [1.0] * len(completions)


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return 1.0


def reads_solution(completions, **others):
    return [
        float(right == completion) for right, completion in zip(others["solution"], completions, strict=True)
    ]


def looks_up_completions(completions, **others):
    return [{"yes": 1.0}[completion] for completion in completions]


def scores_by_completion(completions, **_):
    return {completion: 1.0 for completion in completions}


def forgets_to_return(completions, **_):
    completions.sort()


def with_a_reason(completions, **_):
    return [(1.0, "right")] * len(completions)


def infinite(completions, **_):
    return [float("-inf")] * len(completions)


def logs_a_metric_of_the_run(completions, log_metric, **_):
    log_metric("completions/mean_length", 3.0)
    log_metric("completions/own_length", 4.0)
    return [1.0] * len(completions)

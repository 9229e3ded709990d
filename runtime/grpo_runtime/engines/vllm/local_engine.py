"""vLLM in this process: its offline engine, in a training rank under an external launcher, or in the process
beside one.

With tensor parallelism every rank of an engine makes one of these and calls it with the same requests: the
ranks compute each layer together, and all of them have the result.
"""

import copy
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.inputs import tokens_input

from grpo_api.contract.run_config import RunConfig
from grpo_runtime.engines.interface import with_user_arguments
from grpo_runtime.engines.vllm.arguments import (
    fraction_of_gpu,
    in_process_arguments,
    is_cpu_build,
    read_gpu_memory,
)
from grpo_runtime.engines.vllm.completions import flat_logprobs, rollout_of, vllm_parameters
from grpo_runtime.engines.vllm.configuration import checked, parse_arguments, register_model
from grpo_runtime.errors import UserError
from grpo_runtime.rollouts.interface import EngineError, GenerateRequest, OnFinished, Rollout
from grpo_runtime.rollouts.sampling import PROBE_PARAMETERS, sampling_parameters
from grpo_runtime.torch_threads import engine_threads, num_engine_threads
from grpo_runtime.weight_sync.interface import Info, WeightSyncError

_CPU_WORKER_LOGGER = "vllm.v1.worker.cpu_worker"


class VllmChannel:
    """The verbs of weight transfer as calls of `vllm.LLM`."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm

    async def init(self, info: Info) -> None:
        """Let the engine forget an earlier sender."""
        self._llm.init_weight_transfer_engine({"init_info": dict(info)})

    async def start(self) -> None:
        """Open an update."""
        self._llm.start_weight_update()

    async def update(self, info: Info) -> None:
        """Let the engine check what it will get."""
        self._llm.update_weights({"update_info": dict(info)})

    async def finish(self, version: str) -> None:
        """Load it."""
        self._llm.finish_weight_update(version)

    async def shutdown(self) -> None:
        """Let the engine forget the sender."""
        self._llm.shutdown_weight_transfer_engine()


class VllmEngine:
    """A `LocalEngine`. The ranks must have met before, because vLLM makes its process groups among them.

    Raises UserError naming the argument when vLLM refuses the configuration, and as `fraction_of_gpu` does.
    """

    def __init__(self, run_config: RunConfig, *, model_dir: Path, name: str) -> None:
        self._name = name
        self._sampling = {False: run_config.sampling, True: run_config.evaluation_sampling}
        self._llm = _start(run_config, model_dir=model_dir)
        # at each sleep and wake, three times a step, it warns that it frees nothing
        logging.getLogger(_CPU_WORKER_LOGGER).setLevel(logging.ERROR)
        self.channel = VllmChannel(self._llm)
        self.num_steps = 0

    def sleep(self, level: int) -> None:
        """Give memory back: the KV cache, and the weights to the CPU (level 1) or for good (level 2). On CPU
        vLLM frees nothing."""
        self._llm.sleep(level=level)

    def wake_up(self, tag: str) -> None:
        """Take memory again, for `weights` or for `kv_cache`."""
        self._llm.wake_up(tags=[tag])

    def reset_prefix_cache(self) -> None:
        """Forget what older weights computed."""
        if not self._llm.reset_prefix_cache():
            raise EngineError("vLLM kept cached prefixes of older weights")

    def sample(
        self, requests: Sequence[GenerateRequest], *, on_finished: OnFinished | None = None
    ) -> list[Rollout]:
        """One completion for each request, in their order."""
        finished: dict[int, Rollout] = {}
        for index, rollout in self.sample_each(requests):
            finished[index] = rollout
            if on_finished is not None:
                on_finished(index, rollout)
        return [finished[index] for index in range(len(requests))]

    def sample_each(self, requests: Sequence[GenerateRequest]) -> Iterator[tuple[int, Rollout]]:
        """One completion for each request, with its index, as they are finished. Raises EngineError for one
        that vLLM aborted, with which nobody goes on here, and as `rollout_of`."""
        for index, answer in self._generate(self._with_parameters(requests)):
            prompt_ids = requests[index].prompt_ids
            rollout = rollout_of(answer.outputs[0], prompt_ids=prompt_ids, engine=self._name)
            if rollout.is_aborted:
                raise EngineError("vLLM ended a completion by abort")
            yield index, rollout

    def num_unfinished(self) -> int:
        """How many requests of the running `sample` are not finished. May be called in another thread."""
        return int(self._llm.llm_engine.get_num_unfinished_requests())

    def probe_logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Logprobs (nats, temperature 1) of all tokens after the first."""
        [(_, answer)] = self._generate([(token_ids, vllm_parameters(PROBE_PARAMETERS))])
        # there is none of the first token
        return flat_logprobs(answer.prompt_logprobs, of=token_ids[1:])

    def _with_parameters(
        self, requests: Sequence[GenerateRequest]
    ) -> Iterator[tuple[Sequence[int], SamplingParams]]:
        """The prompt of each request, and vLLM's parameters for it."""
        made: dict[tuple[bool, int | None, tuple[str, ...], str | None], SamplingParams] = {}
        for request in requests:
            kind = request.is_evaluation, request.max_tokens, request.stop, request.own_parameters
            if kind not in made:
                made[kind] = vllm_parameters(
                    sampling_parameters(
                        self._sampling[request.is_evaluation],
                        seed=request.seed,
                        max_tokens=request.max_tokens,
                        stop=request.stop,
                        own=request.own_parameters,
                    )
                )
            # vLLM checks all of them when they are made, and the requests of a step differ in their seed only
            parameters = copy.copy(made[kind])
            parameters.seed = request.seed
            yield request.prompt_ids, parameters

    def _generate(
        self, requests: Iterable[tuple[Sequence[int], SamplingParams]]
    ) -> Iterator[tuple[int, Any]]:
        """vLLM's answer to each prompt and its index, as they finish: what `LLM.generate` does, without
        rendering, which token ids do not need."""
        engine = self._llm.llm_engine
        for index, (token_ids, parameters) in enumerate(requests):
            engine.add_request(str(index), tokens_input(list(token_ids)), parameters)
        while engine.has_unfinished_requests():
            answers = engine.step()
            self.num_steps += 1
            for answer in answers:
                if answer.finished:
                    yield int(answer.request_id), answer


def _start(run_config: RunConfig, *, model_dir: Path) -> Any:
    given = run_config.engine.args
    checked(lambda: register_model(model_dir), given=given)
    is_cpu = is_cpu_build()
    arguments = in_process_arguments(
        run_config,
        model_dir=model_dir,
        is_cpu=is_cpu,
        gpu_memory_utilization=0.0 if is_cpu else fraction_of_gpu(run_config, memory=read_gpu_memory()),
    )
    namespace = parse_arguments(arguments, add=EngineArgs.add_cli_args)
    engine_args = checked(lambda: EngineArgs.from_cli_args(namespace), given=given)
    # what vLLM refuses here is the configuration; later errors may be anything
    checked(engine_args.create_engine_config, given=given)
    try:
        with engine_threads(num_engine_threads(run_config)):
            return LLM.from_engine_args(engine_args)
    except (UserError, WeightSyncError):
        raise
    except Exception as error:
        cause = f"{type(error).__name__}: {error}".splitlines()[0]
        raise EngineError(f"vLLM did not start{with_user_arguments(given)}: {cause}") from error

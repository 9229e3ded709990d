"""`grpo-runtime rollout`: process 1 of a rollout pod.

It runs the engine's server in this process and ends with the contract's exit codes: 40 when the configuration
is wrong, 75 when a retry may help, 143 when it was asked to stop, 1 when the engine died.
"""

import argparse
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_api.contract.endpoints import RENDEZVOUS_PORT, ROLLOUT_PORT
from grpo_api.contract.exit_codes import ExitCode
from grpo_runtime.engines.interface import EngineKind, with_user_arguments
from grpo_runtime.engines.registry import engine_kind
from grpo_runtime.engines.serve.stopping import Stopping
from grpo_runtime.errors import KnownError, UserError
from grpo_runtime.process.failure import describe_failure
from grpo_runtime.process.lasting_imports import lasting_imports
from grpo_runtime.process.log import log_to_stderr
from grpo_runtime.process.network import ANY_ADDRESS
from grpo_runtime.process.termination import termination_message, write_termination_message
from grpo_runtime.settings import RolloutSettings, read_rollout_settings


@dataclass(frozen=True)
class RolloutOptions:
    """What differs between a pod and a shell."""

    host: str = ANY_ADDRESS
    port: int = ROLLOUT_PORT
    rendezvous_port: int = RENDEZVOUS_PORT
    termination_log: Path = Path("/dev/termination-log")


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until asked to stop; returns the exit code of the pod."""
    defaults = RolloutOptions()
    parser = argparse.ArgumentParser(prog="grpo-runtime rollout", description="Run one rollout engine.")
    parser.add_argument("--host", default=defaults.host, help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=defaults.port, help="port to listen on (%(default)s)")
    parser.add_argument(
        "--rendezvous-port",
        type=int,
        default=defaults.rendezvous_port,
        help="where the workers of an engine over several pods meet (%(default)s)",
    )
    parser.add_argument(
        "--termination-log",
        type=Path,
        default=defaults.termination_log,
        help="where the cause of an end goes",
    )
    options = RolloutOptions(**vars(parser.parse_args(arguments)))
    log_to_stderr()
    return serve(os.environ, options=options, kind=engine_kind())


def serve(environment: Mapping[str, str], *, options: RolloutOptions, kind: EngineKind) -> int:
    """Run the engine of this pod to its end and write why it ended to the termination log."""

    def end(code: ExitCode, sentence: str) -> int:
        message = termination_message(code, sentence)
        return write_termination_message(message, termination_log=options.termination_log)

    stopping = Stopping(lambda: end(ExitCode.TERMINATED, "asked to stop"))
    stopping.listen()
    given: Sequence[str] = ()
    try:
        settings = read_rollout_settings(environment)
        given = settings.run_config.engine.args
        os.environ.update(kind.environment())
        _require_gpu(settings, kind)
        kind.serve(
            settings,
            model_dir=_prepare(settings),
            host=options.host,
            port=options.port,
            rendezvous_port=options.rendezvous_port,
            new_loop=stopping.new_loop,
        )
    except UserError as error:
        return end(ExitCode.USER_ERROR, str(error))
    except KnownError as error:
        if not stopping.is_requested:
            return write_termination_message(describe_failure(error), termination_log=options.termination_log)
    except Exception as error:
        traceback.print_exc()
        if not stopping.is_requested:
            cause = f"{type(error).__name__}: {error}".splitlines()[0]
            return end(ExitCode.UNEXPECTED, f"{kind.name} failed{with_user_arguments(given)}: {cause}")
    if stopping.is_requested:
        return end(ExitCode.TERMINATED, "asked to stop")
    return end(ExitCode.UNEXPECTED, f"the {kind.name} engine died; see this container's log")


def _require_gpu(settings: RolloutSettings, kind: EngineKind) -> None:
    """Raise UserError when weights are to go to GPUs and the engine is for CPU, before a model is loaded."""
    with lasting_imports():
        from grpo_runtime.weight_sync.backend_of_run import backend_in_run, require_gpu

    require_gpu(backend_in_run(settings.run_config), has_gpu=not kind.is_cpu_build(), role="rollout")


def _prepare(settings: RolloutSettings) -> Path:
    """Download or make the model; returns its folder."""
    from grpo_runtime.model.source import import_for, materialise_model

    with lasting_imports():
        import_for(settings.run_config.model)
    model = materialise_model(
        settings.run_config.model,
        hub=settings.run_config.hub,
        volumes_dir=settings.volumes_dir,
        into=settings.cache_dir / "model",
    )
    return model.folder


if __name__ == "__main__":
    sys.exit(main())

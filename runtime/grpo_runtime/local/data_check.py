"""Looks at the data, the tokenizer and the reward functions of a local job before its processes start."""

import signal
import time

from grpo_api.contract.exit_codes import ExitCode
from grpo_runtime.errors import UserError
from grpo_runtime.local.context import LocalContext
from grpo_runtime.local.environments import trainer_environment
from grpo_runtime.local.process_table import outcome_of
from grpo_runtime.supervisor.rank_processes import wait_for_signal

_NAME = "data-check"
_POLL_SECONDS = 1.0


def check_before_start(context: LocalContext, *, stop_signals: set[signal.Signals]) -> bool:
    """Run `trainer.data_check` in a process of its own; False when asked to stop meanwhile.

    Raises UserError with what it finds. Anything else that ends it, such as a Hub that is away, is for the
    first attempt, which tries again.
    """
    log = context.fresh_termination_log(_NAME)
    environment = trainer_environment(
        context.run_config,
        context.workspace,
        attempt=1,
        index=0,
        cache=context.fresh_cache(_NAME),
        # of engines that do not run yet
        rollout_ports=[0] * context.run_config.topology.rollout_replicas,
    )
    context.processes.start(
        _NAME,
        [*context.programs.data_check, "--termination-log", str(log)],
        {**context.environment, **environment},
        log=context.workspace.log(_NAME),
    )
    try:
        while True:
            arrived = wait_for_signal({*stop_signals, signal.SIGCHLD}, until=time.monotonic() + _POLL_SECONDS)
            if arrived in stop_signals:
                return False
            for process_exit in context.processes.collect_exits():
                outcome = outcome_of(process_exit, termination_log=log)
                if outcome.termination.exit_code == ExitCode.USER_ERROR:
                    raise UserError(outcome.termination.message)
                return True
    finally:
        context.processes.end_all()

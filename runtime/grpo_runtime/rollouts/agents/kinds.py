"""Every kind of environment, by the field of `environments[]` that asks for it; there is no other list.

To add one, write what plays its episodes, a module that serves as `rollouts.agents.worker` says, and add a
row here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_api.contract.environment import Env
from grpo_api.contract.run_config import RunConfig
from grpo_api.source import NUMBERS
from grpo_api.v1alpha1.spec import CodeRef, EnvironmentSpec
from grpo_runtime.process.user_code import FunctionFile


@dataclass(frozen=True, kw_only=True)
class AgentCode:
    """What plays the episodes of an environment. Where it is code of the user, one of `function` and `file`
    is set."""

    function: str | None = None
    """`module:attribute`, importable where the trainer runs."""
    file: FunctionFile | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    """What else a worker has to know, as JSON."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of a worker, and of what it starts."""


@dataclass(frozen=True, kw_only=True)
class AgentKind:
    """One kind of environment."""

    module: str
    """What a worker runs, as `python -m`."""
    of_spec: Callable[[EnvironmentSpec, RunConfig, Path], AgentCode]
    """Of an environment of a run, whose volumes are mounted in this folder."""
    at_a_time: int | None = None
    """Episodes that a worker plays at a time; the others wait for a place."""


def kind_of(spec: EnvironmentSpec) -> AgentKind:
    """The kind of an environment; the schema has exactly one of these fields set."""
    return next(kind for name, kind in AGENT_KINDS.items() if getattr(spec, name) is not None)


def _coroutine(spec: EnvironmentSpec, _: RunConfig, volumes_dir: Path) -> AgentCode:
    return _code(spec.function, spec.config_map, volumes_dir)


def _tools(spec: EnvironmentSpec, run_config: RunConfig, volumes_dir: Path) -> AgentCode:
    tools = spec.tools
    assert tools is not None
    servers = [server.model_dump(mode="json") for server in tools.mcp_servers or ()]
    # the numbers of a job without a dataset are for the code, and no text for the policy
    has_prompts = run_config.dataset.source != NUMBERS
    system_prompt = run_config.sampling.system_prompt
    more = {"servers": servers, "has_prompts": has_prompts, "system_prompt": system_prompt}
    return _code(tools.function, tools.config_map, volumes_dir, more=more)


def _command(spec: EnvironmentSpec, _: RunConfig, volumes_dir: Path) -> AgentCode:
    return AgentCode(more={"command": spec.command}, environment=_finds(volumes_dir))


def _code(
    function: str | None, ref: CodeRef | None, volumes_dir: Path, more: Mapping[str, Any] | None = None
) -> AgentCode:
    file = None if ref is None else FunctionFile.of_spec(ref, volumes_dir=volumes_dir)
    return AgentCode(function=function, file=file, more=more or {}, environment=_finds(volumes_dir))


def _finds(volumes_dir: Path) -> Mapping[str, str]:
    """As ranks have it, also where there are none."""
    return {Env.VOLUMES_DIR: str(volumes_dir)}


COROUTINE = AgentKind(module="grpo_runtime.rollouts.agents.coroutine", of_spec=_coroutine)
TOOLS = AgentKind(module="grpo_runtime.rollouts.agents.tools", of_spec=_tools)
# each program is a process, of which most take 50 to 200 MB of memory, and a second of a core to start
COMMAND = AgentKind(module="grpo_runtime.rollouts.agents.program", of_spec=_command, at_a_time=16)
AGENT_KINDS: dict[str, AgentKind] = {
    "function": COROUTINE,
    "config_map": COROUTINE,
    "tools": TOOLS,
    "command": COMMAND,
}
"""By the field of `environments[]`, in Python's spelling."""

"""Whether an agent may run code that the policy writes: found in its source, which is not run."""

import ast
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from grpo_runtime.rollouts.agents.kinds import AgentCode

RUNS_CODE = frozenset(
    {
        *("exec", "eval", "os.system", "os.popen", "runpy.run_path", "code.InteractiveInterpreter"),
        *("subprocess.run", "subprocess.Popen", "subprocess.call", "subprocess.check_call"),
        *("subprocess.check_output", "subprocess.getoutput"),
        *("asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell"),
        *("smolagents.CodeAgent", "smolagents.LocalPythonExecutor"),
    }
)
"""What runs a text as code, or as a command."""
_MAY = (
    "runs in the first trainer pod, with its network and its volumes: run it in a sandbox elsewhere, or be "
    "sure that it may see and do all that the agent may"
)


def warnings_of(field: str, code: AgentCode) -> Iterator[str]:
    """A sentence for each place of an agent's module that runs code, and one for any program, also for that
    of an MCP server. Other modules that it imports are not looked at, and a module that is not found, or is
    no Python, has none: starting it says so."""
    programs = {f"the program {command[0]}": command for command in [code.more.get("command")] if command}
    programs |= {f"MCP server {server['name']}": server["command"] for server in code.more.get("servers", ())}
    for name, command in programs.items():
        if command:
            yield (
                f"{field}: what {name} runs is not looked at: if that is code which the policy writes, it "
                f"{_MAY}"
            )
    function = (code.function or "").partition(":")[0]
    path = code.file.path if code.file is not None else _path_of(function)
    if path is None or path.suffix != ".py" or not path.is_file():
        return
    try:
        tree = ast.parse(path.read_text())
    except (SyntaxError, ValueError):
        return
    for name, line in calls_of(tree):
        yield (
            f"{field}: line {line} of {path.name} calls {name}: if that is code which the policy writes, it "
            f"{_MAY}"
        )


def calls_of(tree: ast.Module) -> list[tuple[str, int]]:
    """The calls of RUNS_CODE in a module, each with its line, under whichever name it imports them."""
    known = {name: name for name in RUNS_CODE if "." not in name}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            known |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            module, dot, name = ast.unparse(node.func).partition(".")
            full = f"{known.get(module, module)}{dot}{name}"
            if full in RUNS_CODE:
                found.append((full, node.lineno))
    return sorted(found, key=lambda call: call[1])


def _path_of(module: str) -> Path | None:
    """The file of a module, without importing the packages that it is in."""
    spec, folders = None, None
    for part in module.split("."):
        spec = PathFinder.find_spec(part, folders)
        if spec is None:
            return None
        folders = spec.submodule_search_locations
    return None if spec is None or spec.origin is None else Path(spec.origin)

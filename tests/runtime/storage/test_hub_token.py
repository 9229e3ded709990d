"""The Hub's access token is a file in a pod: the library that all downloads go through finds it there."""

import os
import subprocess
import sys
from pathlib import Path

_SAY_HEADERS = """
from huggingface_hub.utils import build_hf_headers
print(build_hf_headers()["authorization"])
"""


def test_the_token_is_read_from_the_file_that_the_pod_mounts(tmp_path: Path) -> None:
    mounted = tmp_path / "hub-token"
    mounted.mkdir()
    file = mounted / "token"
    file.write_text("hf_mine\n")
    file.chmod(0o440)
    mounted.chmod(0o555)
    variables = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    found = subprocess.run(
        [sys.executable, "-c", _SAY_HEADERS],
        env=variables | {"HF_TOKEN_PATH": str(file), "HF_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout == "Bearer hf_mine\n", found.stderr
    assert [each.name for each in mounted.iterdir()] == ["token"]

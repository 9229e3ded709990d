"""Memory of a null GPU: what fits, what does not, what another process has, and what is given back."""

import subprocess
import sys

import torch

GIB = 1 << 30


def main() -> None:
    if sys.argv[1:] == ["other"]:
        torch.empty(5 * GIB, dtype=torch.uint8, device="cuda")
        return
    if sys.argv[1:] == ["killed"]:
        held = torch.empty(GIB, dtype=torch.uint8, device="cuda")
        print("has it", flush=True)
        sys.stdin.read()
        return
    held = torch.empty(5 * GIB, dtype=torch.uint8, device="cuda")
    for num_bytes in (2 * GIB, 4 * GIB):
        try:
            torch.empty(num_bytes, dtype=torch.uint8, device="cuda")
            print("fits", num_bytes // GIB)
        except torch.OutOfMemoryError as error:
            print("does not fit", num_bytes // GIB, "out of memory" in str(error))
    other = subprocess.run([sys.executable, __file__, "other"], capture_output=True, text=True, check=False)
    print("another process", "out of memory" in other.stderr)
    arguments = [sys.executable, __file__, "killed"]
    pipe = subprocess.PIPE
    killed = subprocess.Popen(arguments, stdin=pipe, stdout=pipe, text=True)
    assert killed.stdout is not None
    killed.stdout.readline()
    print("beside it", torch.cuda.mem_get_info()[0] // GIB)
    killed.kill()
    killed.wait()
    del held
    torch.cuda.empty_cache()
    print("free", torch.cuda.mem_get_info()[0] // GIB)


if __name__ == "__main__":
    main()

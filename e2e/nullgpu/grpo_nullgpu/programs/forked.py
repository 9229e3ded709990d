"""A process that forks before or after it uses a GPU, and whose fork uses one: forked.py before | after. The
exit code of the fork is printed.
"""

import os
import sys

import torch


def main(when: str) -> None:
    if when == "after":
        torch.empty(1, device="cuda")
    if (pid := os.fork()) == 0:
        torch.empty(1, device="cuda:1")
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


if __name__ == "__main__":
    main(sys.argv[1])

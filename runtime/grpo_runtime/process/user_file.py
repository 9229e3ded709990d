"""The user's code in a file of a ConfigMap, as a module that can be imported by its name. A child process
that the code starts by spawn imports it so, to find the functions and classes that it is sent."""

import os
from pathlib import Path

from grpo_runtime.process.user_code import FILE_VARIABLE, run_file

# importing this module gives the user's code: it takes the place of this one under its name
run_file(Path(os.environ[FILE_VARIABLE]))

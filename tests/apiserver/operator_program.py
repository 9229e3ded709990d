"""`python -m grpo_operator`, as a script that can be forked."""

import runpy

runpy.run_module("grpo_operator", run_name="__main__")

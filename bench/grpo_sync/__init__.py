"""How long a weight sync takes, beside floors that are measured in the same run.

`model_shape`, `amounts` and `report` are pure. `receiver` is a process that stands for an engine without
vLLM; `receivers` starts such processes and carries the verbs to them. `floors`, `backend_sync` and
`parameter_sync` are what is measured with them, in the order of `plain_bench`. `engine_bench` measures the
syncs of a fleet of vLLM engines, in the process `engine_syncs`.
"""

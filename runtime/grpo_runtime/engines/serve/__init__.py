"""What a rollout pod runs: the server of its engine behind our guard.

`main` starts the server, and `stopping` ends it on SIGTERM. `guard` decides who may call what, and refuses
trainers of earlier attempts; `sampling_routes` are its own calls of the engine, and `http` its requests and
answers. The table of routes is in `engines.routes`, because the trainer needs it too.
"""

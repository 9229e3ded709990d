"""What a rollout pod runs: vLLM's own OpenAI server behind our guard.

`guard` decides who may call what, `admission` refuses trainers of earlier attempts, `main` starts the server.
The routes are in `engine`, because the trainer needs them too.
"""

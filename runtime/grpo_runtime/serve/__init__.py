"""What a rollout pod runs: vLLM's own OpenAI server behind our guard.

`guard` decides who may call what, `admission` fences trainers of earlier attempts, `main` starts the server.
"""

"""Completions of several turns, made by a coroutine of the user: sampling.rolloutFunction.

`turns` is rank 0's side, with a task for each completion: it asks the user's code what comes next, then the
engines for that turn (`turn_sampler`), and keeps what they sampled (`transcript`). The user's code runs in a
process of its own (`worker`), which may hang or die without the trainer; `conversation` is what it gets.
Rank 0 speaks with it through `function_process`, of which all completions share one (`shared_process`), and
makes once more what failed (`tries`). Agents of environments (`rollouts.agents`) have such processes and
tries too.
"""

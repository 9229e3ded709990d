"""Makes scored groups from prompts.

`stream` gives the loop the groups of each step: `prompting` makes them, the `journal` has some of them after
a restart, and `collect` has a source sample what is missing and whole groups scored (`scoring`); of these
`stream` says which are trained. In asynchronous training `async_stream` does so, over groups that `ahead`
begins before their step, within the bound of `staleness`. `group` is the one type that goes all the way,
`wire` the form in which a completion is written, as `frames`. `interface` is what rollout engines are asked
for; the engines are in `grpo_runtime.engines`, and the user's code for completions of several turns is in
`function`.
"""

"""From prompts to scored groups.

`stream` gives the loop the groups of each step: `prompting` makes them, the `journal` has some of them after
a restart, a `source` samples what is missing, `collect` takes the samples as they come and has whole groups
scored (`scoring`), and `select` says which of them are trained. `group` is the one type that goes all the
way, and `wire` the form in which a completion is written. `interface` is what rollout engines are asked for;
those in pods of their own are in `fleet`, those in the training processes in `colocated`.
"""

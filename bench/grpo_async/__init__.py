"""How much faster asynchronous training is than synchronous training, and what keeps it from being faster.

`cases` is the list of what is measured, `draws` has the random numbers and `tool` the user's code of (a).
`long_answers` is that of (d) and (e), and `taught_policy` makes what they train.
`simulation` says what a run takes whose product costs nothing, `steps` what one took; both are pure.
`engine_runs` trains on real engines, `scripted_runs` on scripted ones.
"""

"""The decisions about a job, one file each: a pure function from a draft of the plan to the next one.

What several of them need is in `plan` beside this folder, and no policy imports another. Their order is in
`plan/__init__.py`.
"""

"""DeepSpeed's ZeRO behind the seam of strategies. Of the whole product only this folder imports deepspeed.

`settings` does so when a policy is spread, and not before: a run with another strategy does not wait for it.
"""

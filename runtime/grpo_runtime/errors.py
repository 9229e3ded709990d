"""What a user can put right, told apart from what only a retry can."""


class UserError(Exception):
    """The user's spec, data or code is wrong: trying again cannot help.

    The message names the thing and the fix. A role that ends because of it ends with exit code 40,
    which the operator reads as "do not retry".
    """


class VolumeFullError(Exception):
    """No space is left where a run writes; the message names the volume. A retry helps once there is some."""

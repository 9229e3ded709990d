"""Types of fields that several sections use: names, addresses, and code of the user."""

from typing import Annotated

from pydantic import Field

from grpo_api.model import ApiModel
from grpo_api.rule import Follows, TextRule

ClaimName = Annotated[
    str,
    Field(max_length=253),
    Follows(
        TextRule(
            r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
            "must be a name of Kubernetes: use lowercase letters, digits, - and ., and begin and end with a "
            "letter or a digit",
        )
    ),
]
"""Name of a PersistentVolumeClaim, a ConfigMap or a Secret."""
JOB_NAME_PATTERN = r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$"
JobName = Annotated[
    str,
    Field(max_length=63),
    Follows(
        TextRule(
            JOB_NAME_PATTERN,
            "cannot be the name of a GRPOJob: use at most 63 lower-case letters, digits and hyphens, "
            "beginning with a letter and ending with a letter or a digit",
        )
    ),
]
"""Name of a GRPOJob."""
Revision = Annotated[
    str,
    Field(max_length=253),
    Follows(
        TextRule(
            "^[A-Za-z0-9][A-Za-z0-9._/-]*$",
            "must be a branch, a tag or a commit: use letters, digits, ., _, - and /, and begin with a "
            "letter or a digit",
        ),
        TextRule(
            r"/\.\.?(/|$)",
            "has . or .. between slashes: write the name of the branch or tag as the Hub has it",
            is_refused=True,
        ),
    ),
]
"""Branch, tag or commit of a repository of the Hub."""
Image = Annotated[
    str,
    Field(max_length=512),
    Follows(TextRule(r"^[^\s]+$", "must be an image, without spaces: write REGISTRY/NAME:TAG")),
]
"""A container image."""

BUCKET_PREFIX = r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9!_.*'()-]+)*"
"""The pattern of `s3://BUCKET/PREFIX`."""
StoreEndpoint = Annotated[
    str,
    Field(max_length=253),
    Follows(
        TextRule(
            r"^https?://[^/?#@\s]+/?$",
            "must be the address of a store, without user and path: write https://HOST:PORT",
        )
    ),
]
"""Address of an S3-compatible store."""
Region = Annotated[
    str,
    Field(max_length=63),
    Follows(
        TextRule(
            "^[a-z0-9-]+$",
            "must be a region: use lowercase letters, digits and -, such as eu-central-1",
        )
    ),
]
"""Region of a bucket."""

ConfigMapKey = Annotated[
    str,
    Field(max_length=253),
    Follows(
        TextRule("^[-._a-zA-Z0-9]+$", "must be a key of a ConfigMap: use letters, digits, -, _ and ."),
        TextRule(
            r"^\.(\.|$)",
            "is no key of a ConfigMap, because it is . or begins with ..: name the key of your module",
            is_refused=True,
        ),
    ),
]
FunctionPath = Annotated[
    str,
    Field(max_length=253),
    Follows(
        TextRule(
            r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$",
            "must name a function of a module in the image: write MODULE:FUNCTION, such as my_rewards:score",
        )
    ),
]
_FunctionName = Annotated[
    str,
    Field(max_length=253),
    Follows(
        TextRule("^[A-Za-z_][A-Za-z0-9_]*$", "must be the name of a function: use letters, digits and _")
    ),
]


class CodeRef(ApiModel):
    """A Python function in a ConfigMap of the job's namespace."""

    name: ClaimName
    """Name of the ConfigMap."""
    key: ConfigMapKey
    """Key of the ConfigMap that holds the Python module."""
    function: _FunctionName
    """Name of the function in that module."""

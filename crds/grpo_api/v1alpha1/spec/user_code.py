"""Code of the user that a job runs: a function in its image, or in a ConfigMap."""

from typing import Annotated

from pydantic import Field

from grpo_api.model import ApiModel
from grpo_api.text_rule import Follows, TextRule
from grpo_api.v1alpha1.spec.fields import ClaimName

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
    """The ConfigMap."""
    key: ConfigMapKey
    """Its key that holds the Python module."""
    function: _FunctionName
    """Function in that module."""

"""Code of the user that a job runs: a function in its image, or in a ConfigMap."""

from typing import Annotated

from pydantic import Field

from grpo_api.model import ApiModel
from grpo_api.v1alpha1.spec.fields import ClaimName

ConfigMapKey = Annotated[str, Field(pattern=r"^[-._a-zA-Z0-9]+$", max_length=253)]
FunctionPath = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$", max_length=253
    ),
]


class CodeRef(ApiModel):
    """A Python function in a ConfigMap of the job's namespace."""

    name: ClaimName
    """The ConfigMap."""
    key: ConfigMapKey
    """Its key that holds the Python module."""
    function: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=253)]
    """Function in that module."""

"""Types of fields that several sections use."""

from typing import Annotated

from pydantic import Field

ClaimName = Annotated[
    str,
    Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$", max_length=253),
]
"""Name of a PersistentVolumeClaim, a ConfigMap or a Secret."""
Revision = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", max_length=253)]
"""Branch, tag or commit of a repository of the Hub."""

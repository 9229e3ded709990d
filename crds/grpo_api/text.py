"""Texts as long as a status may hold them."""

from typing import Annotated

from pydantic import Field

ShortText = Annotated[str, Field(max_length=253)]
"""A name, a reason or a few words."""

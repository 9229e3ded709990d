"""The names in an expression of PromQL: of its metrics, and of the labels that it asks for.

promtool says whether an expression can be read; here it is taken apart as far as that needs.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_STRING = re.compile(r'"(?:\\.|[^"\\])*"')
_RANGE = re.compile(r"\[[^\]]*\]|\boffset\s+\w+")
_SELECTOR = re.compile(r"(?<![\w.])([a-zA-Z_:][\w:]*)\s*\{([^}]*)\}")
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_NAME = re.compile(r"(?<![\w.])([a-zA-Z_:][\w:]*)(?!\w|\s*\()")
_OPERATORS = {"and", "or", "unless", "bool", "by", "without", "on", "ignoring", "group_left", "group_right"}


@dataclass(frozen=True)
class Names:
    """`matched` has the labels that are matched in the selectors of each metric, `grouped` those that series
    are grouped or joined by."""

    matched: Mapping[str, set[str]]
    grouped: set[str]

    @property
    def metrics(self) -> set[str]:
        """Of all selectors."""
        return set(self.matched)


def names_in(expression: str) -> Names:
    """The names in an expression, in which variables of Grafana may stand within strings and ranges."""
    text = _RANGE.sub(" ", _STRING.sub('""', expression))
    matched: dict[str, set[str]] = {}
    for metric, matchers in _SELECTOR.findall(text):
        matched.setdefault(metric, set()).update(_MATCHER.findall(matchers))
    text = re.sub(r"\{[^}]*\}", " ", text)
    grouped = {label.strip() for labels in _GROUPING.findall(text) for label in labels.split(",")}
    for name in _NAME.findall(_GROUPING.sub(" ", text)):
        if name not in _OPERATORS:
            matched.setdefault(name, set())
    return Names(matched, grouped - {""})

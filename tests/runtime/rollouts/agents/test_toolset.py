"""Tools of users' code: their schemas, and the arguments that they take."""

import re
from typing import Any

import pytest
import tool_examples

from grpo_runtime.errors import UserError
from grpo_runtime.rollouts.agents.toolset import BadCallError, Tool, UserTools, text_of

ROW = ("goal",)


def user_tools(found: Any, columns: tuple[str, ...] | None = ROW) -> UserTools:
    return UserTools(found, field="environment game", columns=columns)


def test_public_methods_of_a_class_are_tools_with_schemas_of_their_docstrings():
    tools = {tool.name: tool for tool in user_tools(tool_examples.Counter).tools}
    assert set(tools) == {"up", "later", "breaks", "waits", "meets"}
    assert tools["up"].json["function"] == {
        "name": "up",
        "description": "Count on.",
        "parameters": {
            "type": "object",
            "properties": {"by": {"type": "integer", "description": "How far."}},
            "required": ["by"],
        },
        "return": {"type": "integer"},
    }


def test_a_static_method_has_all_of_its_arguments_in_its_schema():
    [tool] = user_tools(tool_examples.HasStaticTool).tools
    assert tool.arguments('{"a": 1}') == {"a": 1}
    with pytest.raises(BadCallError, match="'a' is a required property"):
        tool.arguments("{}")


@pytest.mark.parametrize(("name", "tools"), [("add", ["add"]), ("BOTH", ["add", "echo"]), ("Judged", None)])
def test_a_function_or_a_list_of_them_is_tools_too(name: str, tools: list[str] | None):
    found = [tool.name for tool in user_tools(getattr(tool_examples, name)).tools]
    assert found == (tools or ["breaks", "later", "meets", "up", "waits"])


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("HasNoTools", "environment game: HasNoTools has no tools: add a method without an underscore"),
        ("undescribed", "environment game: tool undescribed has no schema: .*no docstring.* Google's style"),
        ("untyped", "environment game: tool untyped has no schema: .*type hint.* Give its arguments type"),
        ("NUMBER", "environment game: 3 is no tool: name a class, a function, or a list of functions"),
        ("NeedsArguments", "NeedsArguments must be called without arguments: missing .*'size'"),
        (
            "NeedsMore",
            r"reset of NeedsMore cannot be called \(.*'level'\): .* prompt and the columns .*, goal",
        ),
    ],
)
def test_what_is_no_tool_is_an_error_that_says_what_to_write(name: str, sentence: str):
    with pytest.raises(UserError, match=sentence):
        user_tools(getattr(tool_examples, name))


def test_without_data_it_is_not_known_what_reset_is_called_with():
    assert user_tools(tool_examples.NeedsMore, columns=None).tools


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('{"a": 1', "the arguments of add are no JSON: Expecting ',' delimiter"),
        ("[1]", "the arguments of add are no object, but [1]"),
        ('{"a": 1}', "the arguments of add are wrong: 'b' is a required property"),
        ('{"a": 1, "b": "2"}', "the arguments of add are wrong: b: '2' is not of type 'integer'"),
        ('{"a": 1, "b": 2, "c": 3}', "the arguments of add are wrong: Additional properties are not allowed"),
        ("", "the arguments of add are wrong: "),
        ('{"a": "\\ud83d"}', "the arguments of add have text that is not Unicode"),
    ],
)
def test_arguments_that_no_tool_takes_are_told_by_the_schema(written: str, said: str):
    [tool] = user_tools(tool_examples.add).tools
    with pytest.raises(BadCallError, match=re.escape(said)):
        tool.arguments(written)


def test_arguments_are_those_of_the_schema_and_a_server_may_take_more():
    [tool] = user_tools(tool_examples.add).tools
    assert tool.arguments('{"a": 1, "b": 2}') == {"a": 1, "b": 2}
    assert Tool(json=tool.json, place="").arguments('{"a": 1, "b": 2, "c": 3}')["c"] == 3


PAIR = {"type": "object", "properties": {"pair": {"type": "array", "items": [{"type": "string"}]}}}


def of_server(parameters: dict[str, Any]) -> Tool:
    function = {"name": "find", "description": "", "parameters": parameters}
    return Tool(json={"type": "function", "function": function}, place="MCP server files")


def test_a_schema_is_read_by_the_draft_that_it_names():
    old = of_server({"$schema": "http://json-schema.org/draft-07/schema#", **PAIR})
    old.require_schema(field="environment game")
    assert old.arguments('{"pair": ["a"]}') == {"pair": ["a"]}
    with pytest.raises(BadCallError, match="1 is not of type 'string'"):
        old.arguments('{"pair": [1]}')


def test_a_schema_that_is_none_is_an_error_before_a_call():
    sentence = "environment game: the arguments of tool find of MCP server files have no JSON schema: "
    with pytest.raises(UserError, match=sentence):
        of_server(PAIR).require_schema(field="environment game")


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("on", "on"),
        (3, "3"),
        ({"a": [1]}, '{"a": [1]}'),
        (None, "null"),
        ("caf\udce9", "caf?"),
        (["caf\udce9"], '["caf?"]'),
    ],
)
def test_what_a_tool_returns_is_told_as_text(result: Any, text: str):
    assert text_of(result) == text

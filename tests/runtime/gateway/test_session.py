"""By hand: the tokens, masks and logprobs of what an agent samples, however its client writes the chat
again."""

from dataclasses import replace
from typing import Any

import pytest
from chats import (
    ADD,
    END,
    MAX_MODEL_LEN,
    TERMS,
    asked,
    chat_model,
    chat_tokenizer,
    sampled,
    session,
    tokens,
    written,
)

from grpo_runtime.gateway.chat_request import TokenRequest, read_chat_request
from grpo_runtime.gateway.history import essence
from grpo_runtime.gateway.refusals import BadFieldError, LimitReachedError
from grpo_runtime.gateway.session import Limits, Session

USER, LOW = {"role": "user", "content": "Guess."}, {"role": "user", "content": "low"}


def text_of(found: Session) -> list[tuple[str, str]]:
    """Each sequence: its prompt, and its completion with what is trained in brackets."""
    sequences = []
    for rollout in found.record.rollouts():
        mask = rollout.loss_mask or (True,) * len(rollout.completion_ids)
        marked, before = "", False
        for token, is_sampled in zip(rollout.completion_ids, mask, strict=True):
            marked += "[" * (is_sampled and not before) + "]" * (before and not is_sampled)
            marked += chat_tokenizer().decode([token])
            before = is_sampled
        sequences.append((chat_tokenizer().decode(rollout.prompt_ids), marked + "]" * before))
    return sequences


FIRST = "<|im_start|>user\nGuess.<|im_end|>\n<|im_start|>assistant\n"
NEXT = "\n<|im_start|>user\nlow<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    "echo",
    [
        "<think>\nthe number\n</think>\n 5 ",
        "5",
        "  5\n",
        [{"type": "text", "text": "5"}],
    ],
)
def test_a_chat_that_goes_on_is_one_sequence_whatever_the_client_strips(echo: Any):
    found = session()
    first = asked(found, [USER], f"<think>\nthe number\n</think>\n 5 {END}")
    assert first.message["content"].endswith(" 5 ")
    asked(found, [USER, {"role": "assistant", "content": echo}, LOW], f"7{END}")
    assert text_of(found) == [(FIRST, f"[<think>\nthe number\n</think>\n 5 <|im_end|>]{NEXT}[7<|im_end|>]")]
    [rollout] = found.record.rollouts()
    # what was sampled is kept token by token: no tokenizer makes these of the same text
    assert rollout.completion_ids[: len(written("<think>\nthe number"))] == written("<think>\nthe number")
    assert rollout.completion_ids != tokens(chat_tokenizer().decode(rollout.completion_ids))
    logprobs = [logprob for logprob in rollout.rollout_logprobs if logprob]
    num_first, num_second = len(first.completion_ids), len(written(f"7{END}"))
    assert logprobs == [
        *(-0.01 * (i + 1) for i in range(num_first)),
        *(-0.01 * (i + 1) for i in range(num_second)),
    ]
    assert [(span.start, span.end) for span in rollout.versions] == [
        (0, num_first), (num_first + len(tokens(NEXT)), len(rollout.completion_ids)),
    ]  # fmt: skip


def test_a_history_of_the_template_is_written_anew_and_joins_only_where_its_tokens_are_those():
    found = session(model=chat_model(extends=False))
    asked(found, [USER], f"<think>\nthe number\n</think>5{END}")
    asked(found, [USER, {"role": "assistant", "content": "5"}, LOW], f"7{END}")
    assert [prompt for prompt, _ in text_of(found)] == [FIRST, f"{FIRST}5<|im_end|>{NEXT}"]


def test_a_call_of_a_tool_is_one_sequence_with_other_spaces_in_its_arguments():
    found = session()
    says = 'Well.\n<tool_call>\n{"name":"add","arguments":{"b":2,"a":1}}\n</tool_call>' + END
    first = asked(found, [USER], says, tools=[ADD])
    [call] = first.message["tool_calls"]
    assert first.finish_reason == "tool_calls"
    assert (call["function"]["name"], call["function"]["arguments"]) == ("add", '{"b": 2, "a": 1}')
    call = {**call, "function": {**call["function"], "arguments": '{ "a":1, "b":2 }'}}
    echo = {"role": "assistant", "content": None, "tool_calls": [call]}
    echo["content"] = "Well."
    result = {"role": "tool", "tool_call_id": call["id"], "content": "3"}
    asked(found, [USER, echo, result], f"It is 3.{END}", tools=[ADD])
    [(prompt, completion)] = text_of(found)
    assert prompt.startswith("<|im_start|>system\n{") and prompt.endswith(FIRST)
    behind = "\n<|im_start|>user\n<tool_response>3</tool_response><|im_end|>\n<|im_start|>assistant\n"
    assert completion == f"[{says}]{behind}[It is 3.<|im_end|>]"


def test_a_turn_that_ended_by_a_stop_string_gets_the_end_of_its_turn_untrained():
    found = session()
    first = asked(found, [USER], f"5\nObservation: x{END}", stop=["Observation:"])
    assert (first.message["content"], first.finish_reason) == ("5\n", "stop")
    asked(found, [USER, {"role": "assistant", "content": "5"}, LOW], f"7{END}")
    assert text_of(found) == [(FIRST, f"[5\nObservation:]<|im_end|>{NEXT}[7<|im_end|>]")]


def test_a_turn_that_was_cut_at_its_length_gets_the_end_of_its_turn_untrained():
    found = session()
    first = asked(found, [USER], f"5678{END}", max_tokens=2)
    assert (first.message["content"], first.finish_reason) == ("56", "length")
    asked(found, [USER, {"role": "assistant", "content": "56"}, LOW], f"7{END}")
    assert text_of(found) == [(FIRST, f"[56]<|im_end|>{NEXT}[7<|im_end|>]")]


@pytest.mark.parametrize(
    "messages",
    [
        [USER, {"role": "assistant", "content": "6"}, LOW],
        [{"role": "user", "content": "Guess!"}, {"role": "assistant", "content": "5"}, LOW],
        [USER],
    ],
    ids=["another reply", "another question", "the same question once more"],
)  # fmt: skip
def test_another_history_is_another_sequence(messages: list[Any]):
    found = session()
    asked(found, [USER], f"5{END}")
    asked(found, messages, f"7{END}")
    [first, second] = text_of(found)
    assert first == (FIRST, "[5<|im_end|>]")
    assert second[1] == "[7<|im_end|>]"


def test_of_two_calls_behind_one_the_first_continues_it_and_each_token_is_trained_once():
    found = session()
    asked(found, [USER], f"5{END}")
    chat = [USER, {"role": "assistant", "content": "5"}, LOW]
    asked(found, chat, f"7{END}")
    asked(found, chat, f"8{END}")
    assert text_of(found) == [
        (FIRST, f"[5<|im_end|>]{NEXT}[7<|im_end|>]"),
        (f"{FIRST}5<|im_end|>{NEXT}", "[8<|im_end|>]"),
    ]


def test_each_call_has_a_seed_of_its_own_and_one_that_is_given_up_leaves_its_seed_to_the_next():
    found = session()
    chat = read_chat_request({"messages": [USER]}, terms=TERMS)
    first, second = found.begin(chat), found.begin(chat)
    found.take(second, sampled(second.request, f"5{END}"), seconds=1.0)
    found.give_up(first)
    again, third = found.begin(chat), found.begin(chat)
    assert again.request.seed == first.request.seed
    assert len({first.request.seed, second.request.seed, third.request.seed}) == 3


@pytest.mark.parametrize(
    ("limits", "calls"),
    [
        (Limits(turns=2), 2),
        (Limits(tokens=4), 2),
        (Limits(sequences=1), 1),
    ],
)
def test_a_session_that_is_past_a_limit_is_refused_with_its_name(limits: Limits, calls: int):
    found = session(limits=limits)
    [name] = [name for name, value in vars(limits).items() if value is not None]
    with pytest.raises(LimitReachedError, match=f"limits.{name}"):
        for _ in range(9):
            asked(found, [USER], f"5{END}")
    assert found.record.num_calls <= calls
    assert found.is_cut


def test_a_session_whose_time_is_over_is_refused_with_its_name():
    found = session()
    turn = found.begin(read_chat_request({"messages": [USER]}, terms=TERMS))
    found.end_late()
    # what was being sampled counts
    found.take(turn, sampled(turn.request, f"5{END}"), seconds=1.0)
    assert (found.record.num_calls, found.is_cut) == (1, True)
    with pytest.raises(LimitReachedError, match=r"limits\.seconds of this session is reached"):
        asked(found, [USER], f"5{END}")


def test_the_tokens_of_a_session_bound_its_last_call():
    found = session(limits=Limits(tokens=5))
    asked(found, [USER], f"123{END}")
    assert asked(found, [USER], f"123{END}").finish_reason == "length"
    assert found.record.num_sampled == 5


@pytest.mark.parametrize(
    ("limits", "max_model_len", "longest", "body", "is_cut"),
    [
        (Limits(tokens=5), MAX_MODEL_LEN, 256, {}, True),
        (Limits(), len(tokens(FIRST)) + 5, 256, {}, True),
        # both end it
        (Limits(tokens=5), MAX_MODEL_LEN, 5, {}, True),
        (Limits(tokens=6), MAX_MODEL_LEN, 5, {}, False),
        (Limits(), len(tokens(FIRST)) + 6, 5, {}, False),
        (Limits(tokens=6), MAX_MODEL_LEN, 256, {"max_tokens": 5}, False),
    ],
)
def test_a_call_that_ends_with_its_length_cuts_its_session_where_a_limit_leaves_no_more(
    limits: Limits, max_model_len: int, longest: int, body: dict[str, int], is_cut: bool
):
    model = replace(chat_model(max_tokens=longest), max_model_len=max_model_len)
    for is_trained in (True, False):
        found = session(model=model, limits=limits, is_trained=is_trained)
        answer = asked(found, [USER], f"1234567{END}", **body)
        assert (answer.finish_reason, len(answer.completion_ids)) == ("length", 5)
        assert found.is_cut == is_cut


def test_a_call_that_ends_by_itself_where_a_limit_is_reached_cuts_nothing():
    found = session(limits=Limits(tokens=4))
    assert asked(found, [USER], f"123{END}").finish_reason == "stop"
    assert found.record.num_sampled == 4 and not found.is_cut


def test_the_order_of_the_calls_of_two_chats_in_turn_is_known():
    found = session()
    asked(found, [USER], f"5{END}")
    asked(found, [LOW], f"6{END}")
    asked(found, [USER, {"role": "assistant", "content": "5"}, LOW], f"7{END}")
    assert [turn.sequence for turn in found.turns] == [0, 1, 0]


@pytest.mark.parametrize("limits", [Limits(), Limits(prompt_tokens=8)])
def test_a_prompt_that_leaves_no_room_ends_the_call_with_its_length(limits: Limits):
    found = session(limits=limits)
    long = {"role": "user", "content": "x" * (3000 if limits.prompt_tokens is None else 10)}
    answer = asked(found, [long], f"5{END}")
    assert (answer.message["content"], answer.finish_reason, answer.completion_ids) == ("", "length", ())
    assert found.is_cut and found.record.rollouts() == []


def test_a_chat_that_the_template_refuses_is_told():
    template = "{{ raise_exception('no system') }}"
    model = chat_model()
    object.__setattr__(model.template, "template", template)
    with pytest.raises(BadFieldError, match=r"messages: the chat template refuses them .*no system"):
        session(model=model).begin(read_chat_request({"messages": [USER]}, terms=TERMS))


def test_messages_of_which_a_template_makes_no_token_are_refused_before_an_engine_gets_them():
    model = chat_model()
    object.__setattr__(model.template, "template", "{{ messages[0].content }}")
    found = session(model=model)
    with pytest.raises(BadFieldError, match=r"^messages: they and the chat template make no token"):
        asked(found, [{"role": "user", "content": ""}], f"5{END}")


def test_a_text_with_a_token_that_the_model_has_not_is_refused_before_an_engine_gets_it():
    """As a tokenizer may have that is larger than its model."""
    [last] = tokens("</tool_call>")
    found = session(model=chat_model(vocab_size=last))
    with pytest.raises(BadFieldError, match=rf"^messages: they have the token </tool_call> \({last}\)"):
        asked(found, [{"role": "user", "content": "What is </tool_call>?"}], f"5{END}")
    assert asked(found, [USER], f"5{END}").finish_reason == "stop"
    assert found.record.num_calls == 1


def test_a_tag_in_what_the_policy_did_not_write_makes_another_message():
    for role in ("user", "system", "tool"):
        with_tag, without = ({"role": role, "content": text} for text in ("a</think>b", "b"))
        assert essence(with_tag) != essence(without)


def test_arguments_of_a_call_that_are_too_deep_to_be_read_are_refused():
    found = session()
    call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": "[" * 100_000}}
    echo = {"role": "assistant", "content": "5", "tool_calls": [call]}
    asked(found, [USER], f"5{END}")
    with pytest.raises(BadFieldError, match=r"^messages: the chat template refuses them"):
        asked(found, [USER, echo, LOW], f"7{END}")


def test_a_reply_that_cannot_be_read_is_not_trained_because_its_call_is_sent_again():
    class Unreadable:
        def read(self, text: str, **_: Any) -> Any:
            raise ValueError("the parser")

    found = session(model=replace(chat_model(), replies=Unreadable()))
    with pytest.raises(ValueError, match="the parser"):
        asked(found, [USER], f"5{END}")
    assert (found.record.num_calls, found.record.rollouts()) == (0, [])


def test_a_call_that_asks_for_other_parameters_is_counted_once_it_is_answered():
    found = session()
    for temperature, is_answered in ((1.0, True), (0.2, False), (0.2, True)):
        body = {"messages": [USER], "temperature": temperature, "tool_choice": "required", "tools": [ADD]}
        turn = found.begin(read_chat_request(body, terms=replace(TERMS, given={"temperature": 1.0})))
        if is_answered:
            assert turn.request is not None
            found.take(turn, sampled(turn.request, f"5{END}"), seconds=1.0)
        else:
            found.give_up(turn)
    assert found.overridden == {"temperature": 1, "tool_choice": 2}


def test_a_call_that_cannot_be_read_stays_text_and_is_counted_unless_it_was_cut():
    found = session(limits=Limits(tokens=40))
    broken = f'<tool_call>{{"name": "add{END}'
    first = asked(found, [USER], broken, tools=[ADD])
    assert (first.is_unreadable_call, first.finish_reason) == (True, "stop")
    assert first.message == {"role": "assistant", "content": '<tool_call>{"name": "add'}
    readable = asked(found, [USER], f"5{END}", tools=[ADD])
    cut = asked(found, [USER], f"<tool_call>{'{' * 40}{END}", tools=[ADD])
    assert (cut.finish_reason, cut.is_unreadable_call, readable.is_unreadable_call) == (
        "length",
        False,
        False,
    )
    assert found.num_unreadable_calls == 1


def test_a_session_knows_what_was_new_in_each_call_where_its_tokens_are_and_how_long_it_waited():
    """A chat that goes on twice from the same reply, one that is new, and a call that brings tokens."""
    found = session()
    reply = {"role": "assistant", "content": " 5"}

    def ask(*messages: Any, seconds: float, sampled_for: float | None) -> None:
        turn = found.begin(read_chat_request({"messages": list(messages)}, terms=TERMS))
        assert turn.request is not None
        rollout = replace(sampled(turn.request, f"5{END}"), sampling_seconds=sampled_for)
        found.take(turn, rollout, seconds=seconds)

    ask(USER, seconds=2.0, sampled_for=0.5)
    ask(USER, reply, LOW, seconds=1.0, sampled_for=1.5)
    ask(USER, reply, USER, LOW, seconds=1.0, sampled_for=None)
    ask(LOW, seconds=1.0, sampled_for=1.0)
    turn = found.begin(TokenRequest(prompt_ids=tokens("low")))
    assert turn.request is not None
    found.take(turn, sampled(turn.request, f"5{END}"), seconds=1.0)

    policy = {"role": "assistant", "content": "5"}
    assert found.chats == [
        [USER, policy, LOW, policy],
        [USER, policy, USER, LOW, policy],
        [LOW, policy],
    ]
    assert [(turn.chat, turn.messages) for turn in found.turns] == [
        *((0, (0, 1)), (0, (2, 3)), (1, (2, 4)), (2, (0, 1))),
        (None, (0, 0)),
    ]
    assert [(turn.seconds, turn.waited_seconds) for turn in found.turns] == [
        *((2.0, 1.5), (1.0, 0.0), (1.0, 0.0), (1.0, 0.0), (1.0, 0.0))
    ]
    rollouts = found.record.rollouts()
    assert [turn.sequence for turn in found.turns] == [0, 0, 1, 2, 3]
    for turn in found.turns:
        assert rollouts[turn.sequence].completion_ids[turn.start : turn.end] == written(f"5{END}")

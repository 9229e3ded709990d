"""Sending an image as a stream: both processes end, whichever of them fails."""

import pytest

from grpo_cluster.images import pipe


@pytest.mark.parametrize(
    ("send", "receive", "arrived"),
    [
        (["printf", "layers"], ["cat"], "layers"),
        (["yes"], ["head", "-c", "4"], "y\ny\n"),  # an endless sender
    ],
    ids=["the receiver reads everything", "the receiver stops early"],
)
def test_the_receiver_gets_what_is_sent_and_the_sender_ends_when_the_receiver_does(
    send: list, receive: list, arrived: str
):
    sender, receiver = pipe(send, receive)
    assert receiver.stdout == arrived
    assert (sender.returncode == 0) == (send[0] == "printf")


def test_both_ends_say_why_they_failed():
    failing = ["sh", "-c", "echo no such image >&2; exit 3"], ["sh", "-c", "echo not a tar >&2; exit 4"]
    sender, receiver = pipe(*failing)
    assert (sender.returncode, sender.stderr) == (3, "no such image\n")
    assert (receiver.returncode, receiver.stderr) == (4, "not a tar\n")

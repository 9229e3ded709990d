"""The time that the operator goes by is the API server's."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from grpo_operator.cluster.server_clock import ServerClock

NOON = datetime(2026, 11, 26, 12, tzinfo=UTC)


class Machine:
    """A machine's two clocks, and an API server whose clock is another one."""

    def __init__(self, *, ahead: timedelta = timedelta()) -> None:
        self.wall, self.seconds = NOON + ahead, 1000.0
        self.server = NOON
        self.clock = ServerClock(wall=lambda: self.wall, monotonic=lambda: self.seconds)

    def pass_by(self, seconds: float) -> None:
        self.wall += timedelta(seconds=seconds)
        self.server += timedelta(seconds=seconds)
        self.seconds += seconds

    def ask(self, *, takes: float = 0.1, date: str | None = None) -> None:
        asked_at = self.seconds
        self.pass_by(takes)
        date = format_datetime(self.server.replace(microsecond=0), usegmt=True) if date is None else date
        self.clock.heard(date or None, asked_at=asked_at)

    def is_right(self) -> bool:
        return abs(self.clock() - self.server) <= timedelta(seconds=2)


@pytest.mark.parametrize("minutes", [31, -31, 0])
def test_a_machine_whose_clock_is_wrong_goes_by_the_api_servers(minutes: int):
    machine = Machine(ahead=timedelta(minutes=minutes))
    machine.ask()
    assert machine.is_right()
    machine.pass_by(3600.4)
    assert machine.is_right()


def test_a_clock_that_is_set_while_the_operator_runs_changes_nothing():
    machine = Machine()
    machine.ask()
    machine.wall += timedelta(hours=1)
    assert machine.is_right()


def test_dates_of_whole_seconds_do_not_make_it_go_back():
    machine = Machine()
    times = []
    for _ in range(50):
        machine.ask(takes=0.37)
        times.append(machine.clock())
    assert times == sorted(times) and machine.is_right()


def test_an_api_server_whose_clock_is_set_is_followed():
    machine = Machine()
    machine.ask()
    machine.server += timedelta(minutes=5)
    machine.ask()
    assert machine.is_right()


@pytest.mark.parametrize(
    ("takes", "date"),
    [(60.0, None), (0.1, "yesterday"), (0.1, "Thu, 26 Nov 2026 18:00:00"), (0.1, "")],
    ids=["a slow answer", "no date", "no time zone", "no header"],
)
def test_what_tells_no_time_changes_nothing(takes: float, date: str | None):
    machine = Machine(ahead=timedelta(minutes=31))
    before = machine.clock() - machine.wall
    machine.ask(takes=takes, date=date)
    assert machine.clock() - machine.wall == before


def test_the_date_of_a_slow_answer_belongs_to_the_middle_of_its_request():
    """Where in it the date was written is not known."""
    machine = Machine(ahead=timedelta(minutes=31))
    asked_at = machine.seconds
    machine.pass_by(2.4)
    date = format_datetime(machine.server.replace(microsecond=0), usegmt=True)
    machine.pass_by(2.4)
    machine.clock.heard(date, asked_at=asked_at)
    assert abs(machine.clock() - machine.server) <= timedelta(seconds=1)

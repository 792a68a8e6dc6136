"""Allowances per minute: what is told at the start of a response, what comes back, and what is refused."""

from __future__ import annotations

from session_driver import Driver, silence, speech

from duologue.sessions import client_events as client
from duologue.sessions import server_events as events
from duologue.sessions.config import Limits


def limited(**limits: int) -> Driver:
    return Driver(limits=Limits(**limits))  # type: ignore[arg-type]


def create(driver: Driver, **response: object) -> None:
    driver.do(client.ResponseCreate(response=response))


def told(driver: Driver) -> dict[str, int]:
    return {limit.name: limit.remaining for limit in driver.last(events.RateLimitsUpdated).rate_limits}


def test_nothing_is_said_unless_limits_are_configured() -> None:
    driver = Driver()
    create(driver)
    assert not driver.all(events.RateLimitsUpdated)


def test_o16_it_is_said_between_the_response_and_its_first_item() -> None:
    driver = limited(requests_per_minute=10, tokens_per_minute=5000)
    create(driver, max_output_tokens=100)
    driver.answer()
    kinds = driver.kinds()
    place = kinds.index("rate_limits.updated")
    assert kinds[place - 1 : place + 2] == ["response.created", "rate_limits.updated", "response.output_item.added"]
    requests, tokens = driver.last(events.RateLimitsUpdated).rate_limits
    assert (requests.limit, requests.remaining, requests.reset_seconds) == (10, 9, 6.0)
    assert (tokens.limit, tokens.remaining) == (5000, 4900), "what it may write is reserved"


def test_what_was_reserved_and_not_used_comes_back() -> None:
    driver = limited(tokens_per_minute=5000)
    create(driver)
    assert told(driver) == {"tokens": 904}
    driver.answer()
    create(driver, max_output_tokens=1)
    assert told(driver) == {"tokens": 5000 - 12 - 1}


def test_an_allowance_refills_with_time() -> None:
    driver = limited(requests_per_minute=10)
    for _ in range(3):
        create(driver)
        driver.answer()
    driver.wait(12)
    create(driver)
    assert told(driver) == {"requests": 8}
    driver.answer()
    driver.wait(600)
    create(driver)
    assert told(driver) == {"requests": 9}


def test_beyond_it_a_response_is_refused_until_there_is_room() -> None:
    driver = limited(requests_per_minute=1)
    create(driver)
    driver.answer()
    create(driver)
    assert driver.last(events.ErrorEvent).error.code == "rate_limit_exceeded"
    assert len(driver.all(events.ResponseCreated)) == 1
    driver.wait(60)
    create(driver)
    assert len(driver.all(events.ResponseCreated)) == 2


def test_a_spoken_turn_is_refused_the_same_way_and_the_next_one_answered() -> None:
    driver = limited(requests_per_minute=1)
    driver.spoken_turn()
    driver.say(speech(600), silence(800))
    driver.transcribe("And?")
    assert driver.last(events.ErrorEvent).error.code == "rate_limit_exceeded"
    assert not driver.machine._answering.busy
    driver.wait(60)
    driver.spoken_turn()
    assert len(driver.all(events.ResponseDone)) == 2


def test_an_answer_prepared_in_secret_is_thrown_away_when_it_is_refused() -> None:
    driver = Driver(limits=Limits(requests_per_minute=1), speculate=True)
    create(driver)
    driver.answer()
    driver.say(speech(640), silence(256))
    driver.transcribe("Hello.")
    request_id = driver.write("One.")
    driver.say(silence(320))
    assert driver.last(events.ErrorEvent).error.code == "rate_limit_exceeded"
    assert request_id in driver.aborted
    assert not driver.requests

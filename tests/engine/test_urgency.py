from duologue.engine.executors.urgency import RUNNING_DRY_S, STARVING_S, Urgency


def order(now: float, **requests: Urgency) -> list[str]:
    return sorted(requests, key=lambda name: requests[name].rank(now))


def test_first_what_runs_dry_then_who_waits_then_what_is_wanted_later() -> None:
    dry, drier, ahead = Urgency(0.0), Urgency(0.0), Urgency(0.0)
    dry.made(4.0, 5.0)
    drier.made(3.5, 5.0)
    ahead.made(9.0, 5.0)
    waits, waits_longer, speculation = Urgency(7.9), Urgency(6.5), Urgency(8.3)
    assert order(
        8.0, ahead=ahead, speculation=speculation, waits=waits, dry=dry, waits_longer=waits_longer, drier=drier
    ) == ["drier", "dry", "waits_longer", "waits", "speculation", "ahead"]


def test_an_answer_gives_way_once_it_is_far_enough_ahead_and_comes_back_in_time() -> None:
    answer, waits = Urgency(0.0), Urgency(1.0)
    assert order(1.0, answer=answer, waits=waits) == ["answer", "waits"]
    answer.made(RUNNING_DRY_S + 1.0, 1.0)
    assert order(1.0, answer=answer, waits=waits) == ["waits", "answer"]
    assert order(2.5, answer=answer, waits=waits) == ["answer", "waits"]


def test_answers_that_sound_do_not_keep_others_from_ever_beginning() -> None:
    """Both stall when the machine is too slow for all of them; then the one that has been wanted for longer goes on."""
    sounding, waits = Urgency(0.0), Urgency(5.0)
    sounding.made(1.0, 4.5)
    assert order(5.1, waits=waits, sounding=sounding) == ["sounding", "waits"]
    sounding.made(1.0, 6.5)
    assert order(6.6, waits=waits, sounding=sounding) == ["sounding", "waits"]
    assert order(5.1 + STARVING_S, waits=waits, sounding=sounding) == ["waits", "sounding"]


def test_sound_that_was_prepared_is_heard_when_it_is_wanted_and_not_before() -> None:
    prepared = Urgency(10.0)
    prepared.made(2.0, 9.0)
    prepared.made(1.0, 9.2)
    waits = Urgency(11.0)
    assert order(11.4, prepared=prepared, waits=waits) == ["waits", "prepared"]
    assert order(11.6, prepared=prepared, waits=waits) == ["prepared", "waits"]


def test_requests_that_say_nothing_of_their_sound_take_turns() -> None:
    first, second = Urgency(0.0), Urgency(1.0)
    assert order(2.0, first=first, second=second) == ["first", "second"]
    first.had_a_turn(2.0)
    assert order(2.0, first=first, second=second) == ["second", "first"]

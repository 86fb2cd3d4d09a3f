"""The conversations that the model is trained on."""

import hashlib
from random import Random

from tools.demo_model import voices
from tools.demo_model.conversation import Conversation, Exchange, exchange_pieces, system_pieces
from tools.demo_model.mixture import SKILLS, Scene, conversation, ornamented
from tools.demo_model.skills import facts, tool_calls
from tools.demo_model.split import is_held_out

CORPUS_DIGEST = "c86e7a2fb4ad49659ac910650abc0ed17bbd9b7c682ef36ddac7e25c02b436c2"


def conversations(count: int, room: int = 400) -> list[Conversation]:
    """Some conversations, the same ones every time."""
    rng = Random(7)
    return [conversation(rng, room) for _ in range(count)]


def test_the_trainer_sees_nothing_that_is_held_out() -> None:
    """No key and no function of the examination is in the corpus."""
    made = conversations(300)

    keys = [key for each in made for one in each.exchanges for key in (one.key, *one.shown)]
    assert not [key for key in keys if is_held_out(key)]
    offered = {tool["function"]["name"] for each in made for tool in each.tools}
    assert len(offered) > 50
    assert not [name for name in offered if tool_calls.is_unseen(*name.split("_", 1))]


def test_every_skill_is_practised() -> None:
    """A skill that no mix draws would be examined and never learned."""
    practised = {one.skill for each in conversations(2500, 700) for one in each.exchanges}

    assert {"facts", "arithmetic", "spelling", "memory", "secret", "rule", "persona"} < practised
    assert {"tool_call", "tool_parallel", "tool_missing", "tool_impossible"} < practised
    assert {"json", "thinking", "summary", "story", "pictures", "context_missing"} < practised


def test_what_is_remembered_has_been_said() -> None:
    """Each recalled statement stands in an earlier turn or in the system prompt."""
    for each in conversations(400):
        said = each.system.lower()
        for one in each.exchanges:
            if one.skill == "memory" and not one.answer.isupper():
                value = (one.short or "").lower()
                assert value in said, (value, said)
            said += " " + one.ask.lower()


def test_the_corpus_is_the_one_that_was_trained_on() -> None:
    """A change of the generators needs a full run, with new records; then this digest changes."""
    digest = hashlib.sha256()
    rng = Random("the corpus")
    for _ in range(300):
        made = conversation(rng, 400)
        for each in (made, *(voices.spoken(made, voice) for voice in voices.VOICES)):
            pieces = system_pieces(each)
            for exchange in each.exchanges:
                pieces += exchange_pieces(each, exchange)
            digest.update(repr([(piece.text, int(piece.weight)) for piece in pieces]).encode())

    assert digest.hexdigest() == CORPUS_DIGEST


def test_ornaments_leave_the_answer_alone() -> None:
    """Typing in a hurry changes the question only."""
    rng = Random(2)
    plain = [facts.fact(rng) for _ in range(200)]
    changed = [ornamented(rng, exchange) for exchange in plain]

    assert [one.answer for one in changed] == [one.answer for one in plain]
    assert 5 < sum(one.ask != other.ask for one, other in zip(plain, changed, strict=True)) < 80


def test_a_voice_changes_sentences_and_keeps_forms() -> None:
    """JSON in a pirate's voice would be no JSON."""
    rng = Random(3)
    made = voices.spoken(conversation(rng, 2000, {"chat": 1.0}), "pirate")
    by_skill = {one.skill: one.answer for one in made.exchanges}

    assert by_skill["facts"].startswith("Arr! ")
    assert "json" in by_skill
    assert all(one.answer[0] in "{[" for one in made.exchanges if one.skill == "json")


def test_a_form_that_is_said_again_keeps_its_form() -> None:
    """A pirate who spells a word again spells it as before."""
    spelled = Exchange("spelling", "", 'Spell "fox".', "F-O-X")
    again = Exchange("again", "", "Say that again.", "F-O-X")
    quoted = Exchange("again", "", "What did I just ask?", 'You wrote: "Say that again."')
    made = voices.spoken(Conversation(exchanges=[spelled, again, again, quoted]), "pirate")

    said = [one.answer for one in made.exchanges]
    assert said == ["F-O-X", "F-O-X", "F-O-X", 'Arr! You wrote: "Say that again."']


def test_skills_know_when_they_have_no_place() -> None:
    """No rule, no list, nothing told: no exchange that would lean on it."""
    scene = Scene(Random(4), Conversation(), room=256)

    for name in ("rule", "listed", "ask_place", "ask_secret", "summary", "again", "story"):
        assert SKILLS[name](scene) is None

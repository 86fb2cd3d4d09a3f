"""The conversations that the model is trained on."""

import hashlib
from random import Random

from tools.demo_model import voices
from tools.demo_model.conversation import Conversation, Exchange, exchange_pieces, system_pieces
from tools.demo_model.mixture import SKILLS, Scene, add_ornaments, conversation
from tools.demo_model.skills import facts, tool_calls
from tools.demo_model.split import is_held_out

CORPUS_DIGEST = "c86e7a2fb4ad49659ac910650abc0ed17bbd9b7c682ef36ddac7e25c02b436c2"


def conversations(count: int, room: int = 400) -> list[Conversation]:
    """Generate conversations from a fixed seed."""
    rng = Random(7)
    return [conversation(rng, room) for _ in range(count)]


def test_no_held_out_question_is_in_the_corpus() -> None:
    """Neither a held-out key nor a function of the examination occurs."""
    made = conversations(300)

    keys = [key for each in made for one in each.exchanges for key in (one.key, *one.shown)]
    assert not [key for key in keys if is_held_out(key)]
    offered = {tool["function"]["name"] for each in made for tool in each.tools}
    assert len(offered) > 50
    assert not [name for name in offered if tool_calls.is_unseen(*name.split("_", 1))]


def test_every_skill_is_in_the_corpus() -> None:
    """A skill that no mix draws would be examined but never trained."""
    practised = {one.skill for each in conversations(2500, 700) for one in each.exchanges}

    assert {"facts", "arithmetic", "spelling", "memory", "secret", "rule", "persona"} < practised
    assert {"tool_call", "tool_parallel", "tool_missing", "tool_impossible"} < practised
    assert {"json", "thinking", "summary", "story", "pictures", "context_missing"} < practised


def test_a_recalled_statement_occurs_earlier_in_the_conversation() -> None:
    """In an earlier turn or in the system prompt."""
    for each in conversations(400):
        said = each.system.lower()
        for one in each.exchanges:
            if one.skill == "memory" and not one.answer.isupper():
                value = (one.short or "").lower()
                assert value in said, (value, said)
            said += " " + one.ask.lower()


def test_the_corpus_has_not_changed_since_the_training() -> None:
    """After a change of the generators, train again, then update the records and this digest."""
    digest = hashlib.sha256()
    rng = Random("the corpus")
    for _ in range(300):
        made = conversation(rng, 400)
        for each in (made, *(voices.apply_voice(made, voice) for voice in voices.VOICES)):
            pieces = system_pieces(each)
            for exchange in each.exchanges:
                pieces += exchange_pieces(each, exchange)
            digest.update(repr([(piece.text, int(piece.weight)) for piece in pieces]).encode())

    assert digest.hexdigest() == CORPUS_DIGEST


def test_ornaments_change_only_the_question() -> None:
    """Added words, missing punctuation and lower case."""
    rng = Random(2)
    plain = [facts.fact(rng) for _ in range(200)]
    changed = [add_ornaments(rng, exchange) for exchange in plain]

    assert [one.answer for one in changed] == [one.answer for one in plain]
    assert 5 < sum(one.ask != other.ask for one, other in zip(plain, changed, strict=True)) < 80


def test_a_voice_does_not_change_structured_answers() -> None:
    """JSON answers stay valid; sentences get the prefix."""
    rng = Random(3)
    made = voices.apply_voice(conversation(rng, 2000, {"chat": 1.0}), "pirate")
    by_skill = {one.skill: one.answer for one in made.exchanges}

    assert by_skill["facts"].startswith("Arr! ")
    assert "json" in by_skill
    assert all(one.answer[0] in "{[" for one in made.exchanges if one.skill == "json")


def test_a_repeated_structured_answer_is_not_changed() -> None:
    """A repetition equals the unchanged answer that it repeats."""
    spelled = Exchange("spelling", "", 'Spell "fox".', "F-O-X")
    again = Exchange("again", "", "Say that again.", "F-O-X")
    quoted = Exchange("again", "", "What did I just ask?", 'You wrote: "Say that again."')
    made = voices.apply_voice(Conversation(exchanges=[spelled, again, again, quoted]), "pirate")

    said = [one.answer for one in made.exchanges]
    assert said == ["F-O-X", "F-O-X", "F-O-X", 'Arr! You wrote: "Say that again."']


def test_skills_that_need_context_return_none_without_it() -> None:
    """Without a rule, a list, stored statements or earlier turns."""
    scene = Scene(Random(4), Conversation(), room=256)

    for name in ("rule", "listed", "ask_place", "ask_secret", "summary", "again", "story"):
        assert SKILLS[name](scene) is None

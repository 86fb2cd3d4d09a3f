"""The texts whose tokens tell vocabularies apart."""

from collections.abc import Mapping

from inference_svc.upstream.probe import VOCABULARY_TEXTS, vocabulary_texts
from tests.support.byte_engine import ByteVocabulary


class Tekken(ByteVocabulary):
    """The tokens of a vocabulary as Mistral's, those of spaces, and ids without tokens."""

    control_texts = (
        "</s>",
        *sorted(f"<SPECIAL_{number}>" for number in range(20, 1000)),
        "<unk>",
        "[INST]",
        "[TOOL_CALLS]",
    )
    added_tokens: Mapping[str, int] = {
        "\n\n": 0,
        "<think>": 1,
        "<tool_call>": 2,
        "[PAD32000]": 3,
        "   ": 4,
    }


def test_each_token_is_compared_but_of_numbered_ones_the_first_and_the_last() -> None:
    found = vocabulary_texts(Tekken())
    assert found[: len(VOCABULARY_TEXTS)] == VOCABULARY_TEXTS
    assert sorted(found[len(VOCABULARY_TEXTS) :]) == [
        *("</s>", "<SPECIAL_20>", "<SPECIAL_999>", "<think>", "<tool_call>", "<unk>"),
        *("[INST]", "[TOOL_CALLS]"),
    ]


def test_a_vocabulary_of_many_names_is_compared_in_part() -> None:
    class Many(ByteVocabulary):
        added_tokens: Mapping[str, int] = {f"<{'a' * each}>": each for each in range(1000)}

    assert len(vocabulary_texts(Many())) == len(VOCABULARY_TEXTS) + 256

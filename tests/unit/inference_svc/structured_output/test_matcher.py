"""What a guide makes of a grammar library that fails in ways it should not."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from inference_svc.engine.constraint import Constraint, GuideError
from inference_svc.structured_output.compile_job import byte_tokenizer
from inference_svc.structured_output.grammar import document
from inference_svc.structured_output.matcher import GrammarGuide, GrammarGuides


class Panic(BaseException):
    """As the native code's panics arrive: not an `Exception`."""


class PanickingMatcher:
    """Its every method panics."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        def panic(*_: object) -> None:
            raise Panic(name)

        return panic


class ReadyTemplate:
    """A template that is built, and whose copies panic."""

    def wait(self, _: float) -> bool:
        """It is there."""
        return True

    def copy(self) -> PanickingMatcher:
        """A copy."""
        return PanickingMatcher()

    def warm(self, used: PanickingMatcher) -> None:
        """Look at what is over."""
        used.is_error()


@pytest.fixture
def guide() -> Iterator[GrammarGuide]:
    """A guide over a matcher that panics."""
    with ThreadPoolExecutor(1) as masks:
        guide = GrammarGuide(cast(Any, ReadyTemplate()), masks, 100)
        assert guide.wait(0.0)
        yield guide


@pytest.mark.parametrize(
    "use",
    [
        lambda guide: guide.mask(),
        lambda guide: guide.accept([1]),
        lambda guide: guide.forced_tokens(3),
        lambda guide: guide.is_over,
    ],
    ids=["mask", "take", "forced", "is_over"],
)
def test_a_panic_fails_the_sequence_alone(
    guide: GrammarGuide, use: Callable[[GrammarGuide], object]
) -> None:
    """On the mask thread or the step thread: the engine knows `GuideError` only."""
    with pytest.raises(GuideError, match="any further"):
        use(guide)
    guide.close()


def test_closing_bears_a_panic(guide: GrammarGuide) -> None:
    """An ending must not fail."""
    guide.close()


def follow(guide: GrammarGuide, tokens: list[int]) -> None:
    """Take tokens and compute what may come next."""
    guide.accept(tokens)
    guide.mask()


@pytest.mark.parametrize(
    ("grammar", "tokens", "problem"),
    [
        ('start: "ab"', [ord("b")], "forced bytes: got 'a'; applying 'b'"),
        ('start: "ab"', [5000], "token id 5000 out of range"),
        ('start: "a" nothing\nnothing: nothing', [ord("a")], "nothing can satisfy it"),
    ],
)
def test_a_failure_is_told_in_words(grammar: str, tokens: list[int], problem: str) -> None:
    """Also that of tokens to resume from; what is only for llguidance's log is left out."""
    guides = GrammarGuides(lambda: byte_tokenizer(300, {}, [299]), 300)
    guide = guides.new(Constraint(document([{"lark_grammar": grammar}]), "constraint"))
    assert guide.wait(10.0)
    with pytest.raises(GuideError, match=f"{problem}$"):
        follow(guide, tokens)
    guides.close()


@pytest.mark.parametrize("error", [RuntimeError("no"), Panic("no"), ValueError("no")])
def test_what_goes_wrong_while_building_fails_the_sequence_alone(error: BaseException) -> None:
    """Whatever the builder thread met."""

    def new_tokenizer() -> Any:
        raise error

    guides = GrammarGuides(new_tokenizer, 100)
    guide = guides.new(Constraint("root", "constraint"))
    with pytest.raises(GuideError):
        guide.wait(10.0)
    guide.close()
    guides.close()

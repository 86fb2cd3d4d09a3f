"""Each row of the tables of answers in docs/operate/scale.md has tests, which are named here, or
cases in tests/e2e/test_replicas.py."""

import re
from collections.abc import Mapping
from typing import Final

from tests.architecture.test_engine_page import functions_of
from tests.architecture.test_house_rules import ROOT
from tests.e2e.test_replicas import TOGETHER
from tests.support.seam_cases import CASES

PAGE: Final = ROOT / "docs" / "operate" / "scale.md"
E2E: Final = "tests/e2e/test_replicas.py"
PROGRESS: Final = "tests/unit/svc_kit/rpc/test_generation_progress.py"
CHANNEL: Final = "tests/service/svc_kit/rpc/test_replica_channel.py"
ENGINES: Final = "tests/service/inference_svc/upstream/test_resumption.py"
OBSTACLES: Final = f"{PROGRESS}::test_what_only_one_replica_can_answer_is_not_resumed"
OTHERS: Final = f"{PROGRESS}::test_a_replica_that_would_answer_otherwise_is_an_obstacle"
REFUSALS: Final = f"{CHANNEL}::test_the_reason_of_a_replica_that_refuses_to_go_on_is_told"

ENDS: Final[Mapping[str, tuple[str, ...]]] = {
    "with mirostat or adaptive-p": (
        f"{E2E}::test_what_cannot_go_on_exactly_ends_with_the_reason",
        REFUSALS,
    ),
    "to requests of more than 4 MiB": (
        OBSTACLES,
        f"{CHANNEL}::test_an_answer_that_cannot_be_resumed_ends_with_the_reason",
    ),
    "of engines in [text mode](engines.md#text-mode)": (
        f"{PROGRESS}::test_an_engine_without_ids_is_delivered_unchanged",
    ),
    "with formats or required calls, of engines of others that cannot"
    " [go on within them](engines.md#while-an-engine-is-away)": (
        f"{ENGINES}::test_a_constrained_output_cannot_be_resumed",
        REFUSALS,
    ),
    "that began from a snapshot (`resume.snapshot_id`)": (OBSTACLES,),
    "where the other replica has other weights, another prompt, other adapters or defaults of the"
    " sampling, or ignores options": (
        OTHERS,
        f"{CHANNEL}::test_a_model_with_other_weights_does_not_go_on",
        "tests/unit/inference_svc/engine/test_input_digest.py"
        "::test_the_digest_changes_with_what_the_output_depends_on",
    ),
    "with log probabilities of a chat, where the other replica is of an earlier release": (OTHERS,),
}


def rows_of(head: str) -> list[str]:
    """The first cells of the table whose first column has this head."""
    text = PAGE.read_text(encoding="utf-8")
    (table,) = re.findall(rf"^\| {head} \|.*\n\|-.*\n((?:\|.*\n)+)", text, flags=re.MULTILINE)
    return [line.split("|")[1].strip() for line in table.splitlines()]


def test_every_answer_that_goes_on_has_cases() -> None:
    assert rows_of("answers that go on") == [*dict.fromkeys(case.row for case in CASES.values())]


def test_every_case_is_tried() -> None:
    assert sorted(name for names in TOGETHER for name in names) == sorted(CASES)


def test_every_answer_that_ends_has_tests() -> None:
    named = [test.partition("::") for tests in ENDS.values() for test in tests]

    assert rows_of("answers that end") == [*ENDS]
    assert [name for path, _, name in named if name not in functions_of(ROOT / path)] == []

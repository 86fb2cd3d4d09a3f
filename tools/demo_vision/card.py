"""Writes the table of scores into the projector's card, docs/understand/demo-vision.md."""

from tools.demo_model.card import with_scores
from tools.demo_model.records import ROOT, score
from tools.demo_vision.records import marks

PAGE = ROOT / "docs" / "understand" / "demo-vision.md"
PASSED = 90.0
"""A skill is one from this percentage on."""
NAMES = {
    "one": "one shape",
    "several": "2 to 6 equal shapes",
    "digit": "a digit",
    "two": "two shapes",
}


def table() -> str:
    """Rows of the skills with their scores: first those that are skills, then the weak ones."""
    rows = sorted(((score(each), name) for name, each in marks().items()), reverse=True)
    lines = ["| picture | asked for | % | |", "|---|---|--:|---|"]
    for percent, name in rows:
        kind, skill = name.split("/")
        verdict = "" if percent >= PASSED else "weak"
        lines.append(f"| {NAMES[kind]} | {skill} | {percent:.0f} | {verdict} |")
    return "".join(f"{line}\n" for line in lines)


def page() -> str:
    """Return the card with the recorded scores."""
    return with_scores(PAGE, table())


def write() -> None:
    """Update the card."""
    PAGE.write_text(page())


if __name__ == "__main__":
    write()

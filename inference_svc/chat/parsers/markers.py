"""Finding a marker in text that arrives in pieces."""


def partial_marker(text: str, marker: str) -> int:
    """Return the length of the longest end of `text` that begins, but is not all of, `marker`."""
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0


class SpacedText:
    """Text whose outer white space is left out, though it arrives in pieces.

    White space at the end is held back until something follows it.
    """

    def __init__(self) -> None:
        self._held = ""
        self._begun = False

    def feed(self, text: str) -> str:
        """Take more text; return what is now certain to be inside."""
        if not self._begun:
            text = text.lstrip()
        if not text:
            return ""
        self._begun = True
        text = self._held + text
        inside = text.rstrip()
        self._held = text[len(inside) :]
        return inside

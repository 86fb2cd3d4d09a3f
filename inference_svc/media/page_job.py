"""Renders pages of PDFs. Runs only in a limited child process (`svc_kit.sandbox`)."""

from io import BytesIO
from typing import Any

from svc_kit.sandbox.jobs import JobRefused


def render(payload: dict[str, Any]) -> dict[str, bytes]:
    """Render the first "max_pages" pages of the PDF in "data", "side" pixels on the longer side.

    The result has a PNG file for each page, by its number.

    Raises:
        JobRefused: The PDF is damaged, or a page has sides of a ratio over "max_aspect".
    """
    import pypdfium2  # type: ignore[import-untyped]  # loads a large library

    pages = {}
    try:
        document = pypdfium2.PdfDocument(payload["data"])
        for index in range(min(len(document), payload["max_pages"])):
            short, long = sorted(document[index].get_size())
            if not 0 < long <= payload["max_aspect"] * short:
                raise JobRefused(f"page {index + 1} has sides of {short:g} and {long:g} points")
            bitmap = document[index].render(scale=payload["side"] / long)
            file = BytesIO()
            bitmap.to_pil().save(file, "PNG", compress_level=1)
            pages[str(index + 1)] = file.getvalue()
    except pypdfium2.PdfiumError:
        raise JobRefused("its pages are damaged") from None
    return pages

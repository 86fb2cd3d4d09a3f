"""Render docs/reference/models.md from the results of `tests/outside/llama_cpp` and `vllm`."""

import json
from collections import defaultdict
from pathlib import Path

RESULTS = Path(__file__).resolve().parent.parent / "tests" / "outside" / "llama_cpp" / "results"

HEAD = """# Model families

<!-- Written by tools/generate_docs.py; run `make docs` after a change of the results. -->

Which families of models are known, and how was it tested? A row is a chat template of the locked
llama.cpp, or of vLLM's examples (`tool_chat_template_…`), of which only the formats are found;
models whose GGUF has another template are served by the same rules.

Corral finds out from a template's text in which formats its model calls tools and reasons, and by
rendering probes what the template can show: system and developer messages, tools, calls, results,
parts of content, switches and efforts of reasoning. What a template cannot take back is given to it
in another way: where a message may have one call, calls are messages of their own, and the model
writes one call a turn. Nothing depends on a model's name, and
`turn_formats` overrides what is found ([settings](configuration.md)). A template that shows no
tools gets them described in the format `hermes`; one without the texts of a known format calls in
any `json`.

*Renderings* are 16 conversations, each with the prompt of llama-server: as many are equal, plus as
many that differ for a reason stated in `tests/outside/llama_cpp/differences.py`.

*Parser cases* are llama.cpp's own: an output of the model and the message that it is, whole and
split at every place; in the same way, with the reasons in `test_parser_cases.py`.

vLLM's tests of its parsers, for the families that both know, are run with Corral's parser in the
place of vLLM's; the reasons are in `tests/outside/vllm/test_vllm_parsers.py`. SGLang's detectors
of calls parse the texts of both (`tests/outside/sglang/test_sglang_detectors.py`).

*Constrained calls* are the tool choices with which a grammar makes the model write valid calls in
the syntax that its template shows; other calls are only parsed, and required ones are written in
Hermes' format. A trigger that a vocabulary splits into several control tokens, as Kimi K3's and
GigaChat 3's may be, has no grammar with `auto`.

"""


def render() -> str:
    """Return the page as Markdown."""
    columns, summaries = ["Template"], []
    rows: dict[str, list[str]] = defaultdict(list)
    for path in sorted(RESULTS.glob("*.json"), reverse=True):
        results = json.loads(path.read_text(encoding="utf-8"))
        for family, cells in results["rows"].items():
            rows[family] += [""] * (len(columns) - 1 - len(rows[family])) + cells
        columns += results["columns"]
        summaries.append(f"- {results['summary']}\n")
    table = [columns, ["---"] * len(columns), *([name, *rows[name]] for name in sorted(rows))]
    lines = (f"| {' | '.join(cells)} |" for cells in table)
    return HEAD + "".join(sorted(summaries)) + "\n" + "\n".join(lines) + "\n"

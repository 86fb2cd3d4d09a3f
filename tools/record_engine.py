"""Record what an engine answers to the exchanges of tests/support/engine_exchanges.py.

`python -m tools.record_engine KIND URL` writes tests/data/engines/KIND.jsonl, and what the probe
finds into features.json. The engine serves the demo model, as `make test-engines` starts it:
llama_server with the GGUF file, vllm with the folder that `tools.demo_model.export_hf` writes. Of
sglang, whose stand-in runs, only the features are written.
"""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.support.engine_exchanges import EXCHANGES, RECORDINGS, Answer, Exchange, send
from tests.support.engine_features import find_features, write_features


def record(kind: str, url: str) -> Iterator[dict[str, Any]]:
    """Make the exchanges of a kind, and return the lines of its file."""
    for exchange in EXCHANGES.get(kind, ()):
        with ThreadPoolExecutor(exchange.copies) as pool:
            answers = list(pool.map(send, [url] * exchange.copies, [exchange] * exchange.copies))
        for answer in answers:
            yield _line(exchange, answer)


def _line(exchange: Exchange, answer: Answer) -> dict[str, Any]:
    parts = answer.parts
    if exchange.keeps:
        lines = answer.text.splitlines(keepends=True)
        parts = [(parts[-1][0], "".join(each for each in lines if each.startswith(exchange.keeps)))]
    line: dict[str, Any] = {"name": exchange.name, "path": exchange.path}
    if exchange.body is not None:
        line["body"] = exchange.body
    return {**line, "status": answer.status, "headers": answer.headers, "parts": parts}


def main(kind: str, url: str) -> None:
    """Write the file of a kind, and its features."""
    RECORDINGS.mkdir(exist_ok=True)
    write_features(kind, find_features(url))
    lines = [json.dumps(each, ensure_ascii=False) for each in record(kind, url)]
    if lines:
        (RECORDINGS / f"{kind}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} exchanges with {kind}")


if __name__ == "__main__":
    main(*sys.argv[1:])

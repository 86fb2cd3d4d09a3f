"""Evaluates a served model on local tasks with lm-eval; runs in its own environment.

Reads `{"base_url": "...", "model": "...", "folder": "...", "completions": [...],
"chat": [...]}` from its input: names of tasks in the folder, for each of lm-eval's two clients.
Writes `{task: {"results": {...}, "samples": [...]}}` to the file of its argument.
"""

import json
import sys
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.api.registry import get_model
from lm_eval.tasks import TaskManager

REMOTE = {"tokenizer_backend": "remote", "batch_size": 3}
"""Tokenizes with the served model."""
job = json.load(sys.stdin)


def evaluate(client: str, route: str, tasks: list[str], **options: Any) -> dict[str, Any]:
    model = get_model(client)(
        base_url=job["base_url"] + route,
        model=job["model"],
        num_concurrent=2,
        **REMOTE if client == "local-completions" else {"tokenizer_backend": None},
    )
    found = simple_evaluate(
        model=model,
        tasks=tasks,
        task_manager=TaskManager(include_path=job["folder"], include_defaults=False),
        bootstrap_iters=0,
        **options,
    )
    return {
        task: {"results": found["results"][task], "samples": found["samples"][task]}
        for task in tasks
    }


scored = evaluate("local-completions", "/completions", job["completions"])
answered = evaluate(
    "local-chat-completions", "/chat/completions", job["chat"], apply_chat_template=True
)
Path(sys.argv[1]).write_text(json.dumps(scored | answered, default=str), encoding="utf-8")

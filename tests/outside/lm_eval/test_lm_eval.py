"""lm-eval against a real Corral gives the numbers of llama.cpp alone.

`make test-clients` installs lm-eval and runs this module; CORRAL_LM_EVAL is the Python that has it.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from inference_svc.llama.backend import LlamaBackend
from inference_svc.models.sources import BUNDLED_PATH
from tests.support.llama_engines import open_backend
from tests.support.plain_llama import PlainLlama
from tests.support.services import MODEL
from tools.corral_server import running_server

PYTHON = os.environ.get("CORRAL_LM_EVAL", "")
pytestmark = [
    pytest.mark.skipif(not PYTHON, reason="lm-eval is not installed (CORRAL_LM_EVAL)"),
    pytest.mark.timeout(240),
]
PROGRAM = Path(__file__).with_name("lm_eval_program.py")
END = "<|im_end|>"
TURN = "<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
DOCS = [
    {
        "question": f"What is the capital of {country}?",
        "choices": [f"The capital of {country} is {city}." for city in ("Paris", "Rome", "Oslo")],
        "gold": gold,
    }
    for gold, country in enumerate(("France", "Italy", "Norway"))
]
PROMPT = TURN.format(question="{{question}}").removesuffix("\n") + "{{'\\n'}}"
"""As a template of lm-eval, which drops a newline at its end."""
TASKS: dict[str, dict[str, Any]] = {
    "capitals_choice": {
        "output_type": "multiple_choice",
        "doc_to_text": PROMPT,
        "target_delimiter": "",
        "doc_to_choice": "choices",
        "doc_to_target": "gold",
        "metric_list": [{"metric": "acc"}],
    },
    "capitals_text": {"doc_to_text": PROMPT},
    "capitals_chat": {"doc_to_text": "{{question}}"},
}
GENERATES = {
    "output_type": "generate_until",
    "doc_to_target": "{{choices[gold]}}",
    "generation_kwargs": {"until": ["\n\n"], "do_sample": False, "max_gen_toks": 24},
    "metric_list": [{"metric": "exact_match"}],
}
TOLERANCE = 0.05
"""Of the log probability of an answer of nine tokens."""


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results and samples of all tasks."""
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "capitals.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in DOCS))
    for name, task in TASKS.items():
        fields = (GENERATES if "output_type" not in task else {}) | task
        fields |= {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(folder / "capitals.jsonl")}},
            "test_split": "test",
        }
        (folder / f"{name}.yaml").write_text(json.dumps(fields))  # YAML, too
    job = {"completions": ["capitals_choice", "capitals_text"], "chat": ["capitals_chat"]}
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder)}
    with running_server(tmp_path_factory.mktemp("corral")) as base_url:
        program = subprocess.run(
            [PYTHON, PROGRAM, folder / "results"],
            input=json.dumps({**job, "model": MODEL, "folder": str(folder), "base_url": base_url}),
            env={**os.environ, "PYTHONPATH": "", "OPENAI_API_KEY": "none", **offline},
            capture_output=True,
            text=True,
            check=False,
        )
    assert program.returncode == 0, program.stderr
    results: dict[str, Any] = json.loads((folder / "results").read_text())
    return results


@pytest.fixture(scope="module")
def backend() -> Iterator[LlamaBackend]:
    """The bundled model, for its vocabulary."""
    with open_backend() as backend:
        yield backend


@pytest.fixture
def plain() -> Iterator[PlainLlama]:
    """The bundled model in llama.cpp alone."""
    plain = PlainLlama(BUNDLED_PATH)
    yield plain
    plain.close()


def _tokens(backend: LlamaBackend, text: str) -> Sequence[int]:
    return backend.vocabulary.tokenize(text, add_special=False, parse_special=True)


def test_multiple_choice_has_the_log_probabilities_of_llama_cpp(
    evaluated: dict[str, Any], backend: LlamaBackend, plain: PlainLlama
) -> None:
    """Of each answer, and whether it is the greedy one; the accuracy follows from them."""
    task = evaluated["capitals_choice"]
    num_right = 0
    for sample in task["samples"]:
        scores = []
        for (context, answer), (logprob, is_greedy) in zip(
            sample["arguments"], sample["filtered_resps"], strict=True
        ):
            before = len(_tokens(backend, context))
            tokens = _tokens(backend, context + answer)
            rows = plain.logprobs(tokens)[before - 1 : -1]
            pairs = list(zip(rows, tokens[before:], strict=True))
            scores.append(sum(float(row[token]) for row, token in pairs))
            assert float(logprob) == pytest.approx(scores[-1], abs=TOLERANCE)
            assert str(is_greedy) == str(all(row.argmax() == token for row, token in pairs))
        num_right += scores.index(max(scores)) == sample["doc"]["gold"]

    assert len(task["samples"]) == len(DOCS)
    assert task["results"]["acc,none"] == num_right / len(DOCS)


@pytest.mark.parametrize("name", ["capitals_text", "capitals_chat"])
def test_a_generative_task_has_the_answers_of_llama_cpp(
    evaluated: dict[str, Any], backend: LlamaBackend, plain: PlainLlama, name: str
) -> None:
    """Token for token up to the end of the turn, over both routes."""
    task, num_right = evaluated[name], 0
    for sample in task["samples"]:
        turn = TURN.format(question=sample["doc"]["question"])
        plain.logprobs(_tokens(backend, turn))  # fills an empty context
        tokens = plain.generate([], 24)
        text = b"".join(backend.vocabulary.piece(token, special=True) for token in tokens)
        expected = text.decode().partition(END)[0]

        assert sample["filtered_resps"] == [expected]
        num_right += expected == sample["doc"]["choices"][sample["doc"]["gold"]]
    assert task["results"]["exact_match,none"] == num_right / len(DOCS)
    assert num_right > 0

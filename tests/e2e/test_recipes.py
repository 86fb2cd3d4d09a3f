"""The recipes of CONTRIBUTING.md are complete: each is carried out on a copy of the sources, in the
files that it names and no others, and works there (`tests/support/recipe_proofs.py`).
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pytest

from tests.architecture.test_house_rules import ROOT

pytestmark = pytest.mark.e2e
NOTE: Final = "  // note is a remark of at most 200 characters. Empty: none.\n"
LINE: Final = "[(corral.options.v1.limit) = {max_len: 200}];\n"
FIELD: Final = '    note: str = ""\n'
BODY: Final = '    note: Annotated[str, _limit("note")] | None = None\n'
COLUMN: Final = "    note: Mapped[str]\n"
LAST_MIGRATION: Final = max(path.stem[:4] for path in (ROOT / "migrations/versions").glob("*.py"))
MIGRATION: Final = f'''"""Notes of vector stores."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "next", "{LAST_MIGRATION}"


def upgrade() -> None:
    """Add the column."""
    column = sa.Column("note", sa.Text(), nullable=False, server_default="")
    op.add_column("vector_stores", column)
'''
TOUCH: Final = '''
    @write_transaction
    async def TouchVectorStore(
        self, tx: Transaction, request: pb.TouchVectorStoreRequest
    ) -> VectorStore:
        """Postpone the expiry of a store. Raises VectorStoreNotFound."""
        store = await VectorStoreQueries(tx).lock(request.vector_store_id)
        touched = store.touch(self.clock())
        await VectorStoreQueries(tx).update(touched)
        return touched
'''
TOUCH_ROUTE: Final = '''

@rpc.route("POST", "/{store_id}/touch", "Touch a vector store", VECTOR_STORE)
def touch_vector_store(store_id: str) -> pb.TouchVectorStoreRequest:
    """Postpone the expiry of a vector store."""
    return pb.TouchVectorStoreRequest(vector_store_id=store_id)
'''
TOUCH_RPC: Final = """
  // TouchVectorStore postpones the expiry of a store. Errors: as GetVectorStore.
  rpc TouchVectorStore(TouchVectorStoreRequest) returns (TouchVectorStoreResponse) {
    option (corral.auth.v1.scope) = SCOPE_FILES;
  }"""
TOUCH_MESSAGES: Final = """
message TouchVectorStoreRequest {
  // vector_store_id begins with "vs_". Unknown: NOT_FOUND.
  string vector_store_id = 1;
}

message TouchVectorStoreResponse {
  // vector_store is as it is after the call.
  VectorStore vector_store = 1;
}

"""
FLOOR: Final = """  // temp_floor replaces the temperature. Unset: 0 (off).
  optional float temp_floor = 23 [(corral.options.v1.limit) = {lte: 100}];
"""
FLOOR_BODY: Final = '    temp_floor: Annotated[float, _limit("temp_floor")] | None = None\n'
FLOOR_FIELD: Final = "    temp_floor: float = 0.0\n"
ACME: Final = 'ACME = (Calls("$name $arguments]", "[ACME ", encloses_each=True),)\n'
ACME_FAMILY: Final = '    ToolCallFormat.ACME: _written(families.ACME, ("[ACME ",)),\n'
Edit = tuple[str, str, str]
"""A file; the text, found by a regular expression, behind which a text is inserted; and that."""
_PROTOS, _STORES = "protos/corral/control/v1/", "control_svc/vector_stores/"
_OPENAI, _PARSERS = "dialects/openai/", "inference_svc/chat/parsers/"
_STORE_RPCS = f"{_PROTOS}vector_store_service.proto"
_STORE_JSON = f"{_OPENAI}resources/vector_stores.py"
_FILTERS = "inference_svc/llama/sampling/native_filters.py"
_NAME: Final = r"(.|\n)*?(?=    name: )"
EDITS: Final[Mapping[str, Sequence[Edit]]] = {
    "field of an assistant": [
        (_PROTOS + "assistant.proto", "effort = 13;\n", f"{NOTE}  string note = 14 {LINE}"),
        ("control_svc/assistants/model.py", '    reasoning_effort: str = ""\n', FIELD),
        (_OPENAI + "assistants/requests.py", r"class AssistantBody(.|\n)*?model: .*\n", BODY),
        (_OPENAI + "assistants/objects.py", r"    instructions: .*\n", "    note: str | None\n"),
    ],
    "field of a vector store": [
        (_PROTOS + "vector_store.proto", "model = 12;\n", f"{NOTE}  string note = 13;\n"),
        (_STORE_RPCS, "message Create.*\n", f"{NOTE}  string note = 8 {LINE}"),
        (_STORE_RPCS, "message Update.*\n", f"{NOTE}  optional string note = 6 {LINE}"),
        (_STORES + "model.py", f"class StoreSettings{_NAME}", FIELD),
        (_STORES + "tables.py", "    # set by the caller\n", COLUMN),
        ("migrations/versions/next_note.py", "", MIGRATION),
        (_STORE_JSON, f"class VectorStoreBody{_NAME}", BODY),
        (_STORE_JSON, f"class VectorStoreUpdateBody{_NAME}", BODY),
        (_STORE_JSON, rf"class VectorStore\({_NAME}", "    note: str\n"),
    ],
    "RPC with a route": [
        (_STORE_RPCS, r"\nservice VectorStoreService {", TOUCH_RPC),
        (_STORE_RPCS, "(?=message GetVector)", TOUCH_MESSAGES),
        (_STORES + "service.py", "db.transaction import .*", ", write_transaction"),
        (_STORES + "service.py", "        return change\n", TOUCH),
        ("gateway/routes/vector_stores.py", r"return pb.Delete.*\n", TOUCH_ROUTE),
    ],
    "sampling parameter": [
        ("protos/corral/inference/v1/sampling.proto", "uint64 seed = 22;\n", FLOOR),
        ("dialects/shared/sampling.py", "(?=    temperature: Annotated)", FLOOR_BODY),
        ("inference_svc/engine/sampling_params.py", "(?=    top_k: int)", FLOOR_FIELD),
        (_FILTERS, r"llama_sampler_init_temp_ext\(\n\s+", "settings.temp_floor or "),
    ],
    "format of tool calls": [
        (_PARSERS + "families.py", "(?=HERMES = )", ACME),
        (_PARSERS + "formats.py", '    OFF = "off"\n', '    ACME = "acme"\n'),
        ("docs/operate/configure.md", r"\| `tool_calls` .*\n.*\n", "| `acme` | `[ACME …]` |\n"),
        (_PARSERS + "formats.py", "FAMILIES: .* = {\n", ACME_FAMILY),
    ],
}
EXPECTED: Final[Mapping[str, Any]] = {
    "field of an assistant": ["first", "first", "second", "second"],
    "field of a vector store": ["first", "first", "second", "second"],
    "RPC with a route": 3600,
    "sampling parameter": [[1.5, 0.5], [False, True]],
    "format of tool calls": ["Hi", "", [["get_time", '{"a": 1}']]],
}
SOURCES: Final = (
    *("svc_kit", "model_files", "dialects", "gateway", "control_svc", "corral_cli", "protos"),
    *("inference_svc", "migrations", "tools", "tests/support", "docs/operate"),
)


def recipes() -> dict[str, set[str]]:
    """The files of each recipe, as CONTRIBUTING.md names them."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| an? (.*?) \| (.*`.*) \|$", text.split("## Recipes")[1], re.MULTILINE)
    return {name: set(re.findall(r"`([^`]*/[^`]*)`", files)) for name, files in rows}


def carry_out(edit: Edit, copy: Path) -> None:
    name, anchor, text = edit
    path = copy / name
    old = path.read_text(encoding="utf-8") if anchor else ""
    found = re.search(anchor, old)
    assert found, f"{name} has no {anchor}"
    path.write_text(old[: found.end()] + text + old[found.end() :], encoding="utf-8")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """What a copy of the sources does on which all recipes were carried out."""
    copy = tmp_path_factory.mktemp("copy")
    leave_out = shutil.ignore_patterns("bundled", "*.gguf", "*.woff2")
    for name in SOURCES:
        shutil.copytree(ROOT / name, copy / name, ignore=leave_out)
    (copy / "tests/__init__.py").touch()
    for edit in chain.from_iterable(EDITS.values()):
        carry_out(edit, copy)
    run_in(copy, "bash", "tools/generate_protos.sh")
    run_in(copy, sys.executable, "-m", "tools.lacks")
    proofs = sys.executable, "-m", "tests.support.recipe_proofs"
    found: Mapping[str, Any] = json.loads(
        run_in(copy, *proofs, str(tmp_path_factory.mktemp("services")))
    )
    return found


def run_in(copy: Path, *command: str) -> str:
    """Run a program with the modules of the copy; return what it prints."""
    modules = os.pathsep.join(map(str, (copy, copy / "gen")))
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PYTHONPATH": modules, "PATH": programs}
    ended = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


@pytest.mark.parametrize("recipe", EDITS)
def test_a_recipe_names_the_files_that_it_changes(recipe: str) -> None:
    """All of them and no others; at most six."""
    named, changed = recipes()[recipe], {name for name, _, _ in EDITS[recipe]}

    assert {name for name in named for each in changed if fnmatch(each, name)} == named
    assert {each for name in named for each in changed if fnmatch(each, name)} == changed
    assert len(named) <= 6


@pytest.mark.parametrize("recipe", EDITS)
def test_what_a_recipe_adds_works(recipe: str, results: Mapping[str, Any]) -> None:
    """Through the services of a copy that has nothing but these changes."""
    assert results[recipe] == EXPECTED[recipe]

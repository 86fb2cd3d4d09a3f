"""Rules of this code base that no linter has, each with its reason, checked on the sources."""

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = [
    "svc_kit",
    "model_files",
    "dialects",
    "inference_svc",
    "control_svc",
    "gateway",
    "corral_cli",
]
FORBIDDEN_WORDS = ("Manager", "Helper", "Util", "Base")
VAGUE_VERBS = {"carry", "forget", "give", "hear", "hold", "keep", "let", "say", "take", "tell"}


def product_files() -> list[Path]:
    """Every hand-written module that is shipped."""
    return sorted(path for package in PRODUCT for path in (ROOT / package).rglob("*.py"))


def violations(rule: Callable[[ast.AST], bool], allowed: tuple[str, ...] = ()) -> list[str]:
    """`file:line` of every node that breaks the rule, outside the allowed files and folders."""
    found = []
    for path in product_files():
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(allowed):
            found += [f"{name}:{line}" for line in lines_that(rule, path)]
    return found


def lines_that(rule: Callable[[ast.AST], bool], path: Path) -> Iterator[int]:
    for node in nodes(path):
        if rule(node):
            yield getattr(node, "lineno", 1)


@cache
def nodes(path: Path) -> Sequence[ast.AST]:
    """All nodes of a shipped module, which itself is the first."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@pytest.fixture(scope="module", autouse=True)
def _free_nodes() -> Iterator[None]:
    yield
    nodes.cache_clear()


def attribute(node: ast.AST, owner: str, *names: str) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr in names
        and isinstance(node.value, ast.Name)
        and node.value.id == owner
    )


def test_only_svc_kit_aborts_a_call() -> None:
    """Services raise DomainErrors; one interceptor converts them into a gRPC status."""

    def aborts(node: ast.AST) -> bool:
        return attribute(node, "context", "abort", "abort_with_status", "set_code", "set_details")

    assert violations(aborts, allowed=("svc_kit/",)) == []


def test_the_environment_is_read_by_settings_alone() -> None:
    """A setting read elsewhere would not be validated, shown or documented."""

    def reads_environment(node: ast.AST) -> bool:
        return attribute(node, "os", "environ", "getenv", "environb", "putenv")

    assert violations(reads_environment, allowed=ENVIRONMENT_READERS) == []


ENVIRONMENT_READERS = (
    "svc_kit/settings/groups.py",  # reads every setting
    "svc_kit/lifecycle.py",  # NOTIFY_SOCKET of systemd
    "corral_cli/up/children.py",  # passes the environment to the services that it starts
    "corral_cli/launch/launcher.py",  # and to the program that it becomes
    "inference_svc/engine_client/process.py",  # and to the engine, with malloc's variable
    "svc_kit/rpc/replica_channel.py",  # switches on a feature of gRPC
    "svc_kit/sandbox/process.py",  # passes the library path only
)


def test_one_module_commits() -> None:
    """A transaction is one call or one step of a job and is begun and ended in one place."""

    def commits(node: ast.AST) -> bool:
        return attribute(node, "session", "begin", "commit", "rollback")

    outside = violations(commits, allowed=("control_svc/db/transaction.py",))

    assert outside == []


def test_queries_name_the_project_of_their_transaction() -> None:
    """Statements of a slice are made by the methods of `Queries`, or beside the condition `_mine`;
    what crosses projects is in classes of another kind."""
    bases: dict[str, set[str]] = {}
    classes: dict[str, ast.ClassDef] = {}
    for path in (ROOT / "control_svc").rglob("*.py"):
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = {ast.unparse(each).partition("[")[0] for each in node.bases}
                classes[node.name] = node

    def is_of_a_project(name: str) -> bool:
        return any(each == "Queries" or is_of_a_project(each) for each in bases.get(name, ()))

    of_projects = [each for name, each in classes.items() if is_of_a_project(name)]
    careless = [f"{each.name}.{name}" for each in of_projects for name in careless_methods(each)]

    assert len(of_projects) > 15
    assert careless == []


def careless_methods(queries: ast.ClassDef) -> set[str]:
    """The methods that make a statement without `_mine`, called by themselves or by a method of
    the class that they call."""
    raw, calls = set[str](), dict[str, set[str]]()
    for method in queries.body:
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
            called = {each.func for each in ast.walk(method) if isinstance(each, ast.Call)}
            makers = ("select", "insert", "update", "delete", "exists")
            calls[method.name] = {
                each.attr
                for each in called
                if isinstance(each, ast.Attribute) and attribute(each, "self", each.attr)
            }
            if any(attribute(each, "sa", *makers) for each in called):
                raw.add(method.name)
    bound = {"_mine"}
    while more := {name for name in calls if calls[name] & bound} - bound:
        bound |= more
    return raw - bound


def test_only_the_command_prints() -> None:
    """Services log; a print has no format, level or request id."""

    def prints(node: ast.AST) -> bool:
        return (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "print"
        )

    assert violations(prints, allowed=("corral_cli/",)) == []


def test_commands_print_through_one_module() -> None:
    """It escapes what a terminal would obey in the names and answers of servers."""

    def echoes(node: ast.AST) -> bool:
        return (
            isinstance(node, ast.Attribute)
            and node.attr in ("echo", "secho", "echo_via_pager")
            and isinstance(node.value, ast.Name)
            and node.value.id == "click"
        )

    assert violations(echoes, allowed=("corral_cli/output.py",)) == []


def test_nothing_is_validated_by_assert() -> None:
    """`python -O` removes assertions; product code raises."""
    assert violations(lambda node: isinstance(node, ast.Assert)) == []


def test_few_handlers_catch_everything() -> None:
    """A broad handler hides defects. The allowed ones have a comment with their reason; those that
    raise again at the end only clean up."""
    broad = re.compile(r"except( \(?(Base)?Exception\b.*)?:")

    def swallows(node: ast.AST) -> bool:
        return (
            isinstance(node, ast.ExceptHandler)
            and broad.match(ast.unparse(node).splitlines()[0]) is not None
            and ast.unparse(node.body[-1]) != "raise"
        )

    found = violations(swallows)
    lines = [line_at(place) for place in found]

    assert [place.partition(":")[0] for place in found] == sorted(BROAD_HANDLERS)
    assert [line for line in lines if "  # " not in line] == []


BROAD_HANDLERS = (
    # The outermost layers: of the gateway, of servers and of child processes.
    "gateway/http/middleware.py",
    "gateway/response_socket.py",
    "svc_kit/rpc/interceptors.py",
    "svc_kit/sandbox/frames.py",
    "svc_kit/sandbox/worker.py",
    # A defect fails one object, and not its neighbours.
    "control_svc/batches/line_client.py",  # a line of a batch
    "control_svc/event_log/group_commit.py",  # a stream
    "control_svc/jobs/dispatcher.py",  # an attempt,
    "control_svc/jobs/dispatcher.py",  # and the storing of its result
    "inference_svc/adapter_sync/reconciler.py",  # an adapter
    "inference_svc/engine_process/file_thread.py",  # a snapshot or a prefix
    "inference_svc/llama/sampling/batch_sampler.py",  # a sequence
    "inference_svc/model_pool/lifecycle.py",  # a model
    "inference_svc/upstream/endpoints.py",  # a URL of an upstream
    # Code of others that may raise anything.
    "control_svc/agent/mcp_client.py",
    "control_svc/db/notifications.py",
    "inference_svc/structured_output/matcher.py",
    # Errors are passed on to those who wait, or logged by loops that go on.
    "control_svc/event_log/reader.py",
    "svc_kit/logs.py",
)


def line_at(place: str) -> str:
    name, _, number = place.partition(":")
    return (ROOT / name).read_text(encoding="utf-8").splitlines()[int(number) - 1]


def test_class_names_are_specific() -> None:
    """Helper, Util and Base do not say what a class is."""

    def vague(node: ast.AST) -> bool:
        return isinstance(node, ast.ClassDef) and (
            node.name.startswith("Base") or node.name.endswith(FORBIDDEN_WORDS)
        )

    assert violations(vague) == []


def test_function_names_say_what_happens() -> None:
    """`store`, `remove` or `cancel` instead of keep, forget or give up."""

    def vague(node: ast.AST) -> bool:
        return (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name.strip("_").partition("_")[0] in VAGUE_VERBS
        )

    assert violations(vague) == []


def test_tests_do_not_patch_our_own_modules() -> None:
    """A patched module is not the one that runs; tests pass arguments instead."""
    patched = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        ours = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(tuple(PRODUCT))
            for alias in node.names
        }
        patched += [
            f"{path.relative_to(ROOT).as_posix()}:{node.lineno}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith(("monkeypatch.setattr", "patch.object"))
            and (target := ast.unparse(node.args[0]).strip("'"))
            and (target in ours or target.partition(".")[0] in {*PRODUCT})
        ]

    assert patched == []


def test_every_module_has_a_docstring() -> None:
    """It is the first thing that a reader sees."""
    silent = [
        path.relative_to(ROOT).as_posix()
        for path in product_files() + sorted((ROOT / "tools").glob("*.py"))
        if path.stat().st_size > 0
        and ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) is None
    ]

    assert silent == []


def test_every_test_states_its_behaviour() -> None:
    """By its name; one of fewer than three words needs a docstring."""
    silent = [
        f"{path.relative_to(ROOT).as_posix()}:{node.lineno} {node.name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and len(node.name.removeprefix("test_").split("_")) < 3
        and ast.get_docstring(node) is None
    ]

    assert silent == []

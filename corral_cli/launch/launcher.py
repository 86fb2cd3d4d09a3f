"""`corral launch`: starts a coding agent that uses this server. It is configured by its environment
and its options; files that it needs are in a folder of Corral's own."""

import functools
import hashlib
import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click

from corral_cli.access import Access, gateway_options
from corral_cli.launch.gateway_models import choose_model, list_models
from corral_cli.launch.program_keys import PLACEHOLDER, Budget, ProgramKeys
from corral_cli.launch.programs import (
    KEY_VARIABLE,
    PROGRAMS,
    Endpoint,
    Program,
    ServedModel,
)
from corral_cli.limits import Amount
from corral_cli.output import echo, echo_line, format_table
from svc_kit.local_files import atomic_file

_MASK: Final = "***"
_SERVICE_TOKEN: Final = "CORRAL_SERVICE_TOKEN_FILE"  # noqa: S105  (the name of a variable)


@click.command("launch")
@click.argument("program", type=click.Choice(list(PROGRAMS)), required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--model", help="Name of the model. Default: the server's first model.")
@click.option("--project", help="The project of the program's key. Default: default.")
@click.option("--budget", type=Amount(), help="What a new key may cost in a period.")
@click.option(
    "--budget-period", type=click.Choice(["day", "month"]), default="month", show_default=True
)
@click.option(
    "--print", "is_printed", is_flag=True, help="Print what would be set and run, start nothing."
)
@click.option("--show-key", is_flag=True, help="With --print: also the key, created if needed.")
@click.option("--yes", "-y", is_flag=True, help="Start although the model's context is short.")
@gateway_options
def launch(
    connect: Access,
    program: str | None,
    arguments: tuple[str, ...],
    model: str | None,
    project: str | None,
    budget: Decimal | None,
    budget_period: str,
    is_printed: bool,
    show_key: bool,
    yes: bool,
) -> None:
    """Start the coding agent PROGRAM with this server as its model. ARGUMENTS after -- are the
    program's. Without PROGRAM: list the programs."""
    if show_key and not is_printed:
        raise click.UsageError("--show-key is for --print.")
    if program is None:
        print_programs()
        return
    chosen = PROGRAMS[program]
    path = chosen.command if is_printed else find_program(chosen)
    gateway, folder = connect.address("gateway"), Path(click.get_app_dir("corral")) / "launch"
    ca_file = connect.tls.ca_file if connect.tls else None
    list_served = functools.partial(list_models, gateway, ca_file=ca_file)
    keys = ProgramKeys(chosen, gateway, project, folder / "keys", connect, list_served)
    limit = None if budget is None else Budget(budget, budget_period)
    key, models = choose_key(keys, limit, may_create=show_key or not is_printed)
    first, *others = choose_model(models, model)
    shown = key if show_key or not is_printed or key == PLACEHOLDER else _MASK
    files = folder / chosen.name / _folder_name(gateway, project, first)
    settings = chosen.configure(Endpoint(gateway, shown, first, others, files))
    variables = {KEY_VARIABLE: shown, _SERVICE_TOKEN: None, **settings.variables}
    command = [path, *settings.options, *arguments]
    if is_printed:
        echo(script(chosen, settings.files, variables, command))
        return
    check_context(chosen, first, is_confirmed=yes)
    write_files(settings.files)
    execute(command, variables)


def _folder_name(gateway: str, project: str | None, model: ServedModel) -> str:
    """Each project and model has files of its own: a program may read them again while it runs."""
    digest = hashlib.sha256(f"{project or 'default'} {model.name}".encode()).hexdigest()[:8]
    return f"{urlsplit(gateway).netloc.replace(':', '-')}-{digest}"


def print_programs() -> None:
    """Print a line for each program: where it is, or how to install it."""
    rows = (
        (program.name, program.title, program.find() or f"to install: {program.install}")
        for program in PROGRAMS.values()
    )
    for line in format_table(["PROGRAM", "NAME", "EXECUTABLE"], rows):
        echo_line(line)


def find_program(program: Program) -> str:
    """The path of an executable. Raises click.ClickException, which says how to install it."""
    if path := program.find():
        return path
    text = f"{program.title} is not installed ({program.homepage}). To install it"
    raise click.ClickException(f"{text}: {program.install}")


def choose_key(
    keys: ProgramKeys, budget: Budget | None, *, may_create: bool
) -> tuple[str, Sequence[ServedModel]]:
    """The program's key, and the models that it may use. Raises click.ClickException."""
    if found := keys.find(budget):
        return found
    if may_create:
        return keys.create(budget)
    text = f"{keys.program.title} has no key of this project and server yet"
    raise click.ClickException(f"{text}: its first start creates one, as does --print --show-key")


def check_context(program: Program, model: ServedModel, *, is_confirmed: bool) -> None:
    """Warn if the model's context is too short for the program, and ask who sits at a terminal.

    Raises click.Abort.
    """
    if model.context_tokens is None or model.context_tokens >= program.context_tokens:
        return
    echo_line(
        f"corral: warning: {model.name} has a context of {model.context_tokens:,} tokens, and"
        f" {program.title} needs {program.context_tokens:,} or more. Start the server with"
        f" --context {program.context_tokens}, or choose another model with --model",
        err=True,
    )
    if not is_confirmed and sys.stdin.isatty():
        click.confirm(f"Start {program.title} anyway?", abort=True, err=True)


def write_files(files: Mapping[Path, str]) -> None:
    """Write the files of a program; they replace those of its last start."""
    for path, content in files.items():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with atomic_file(path) as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(content.encode())


def script(
    program: Program,
    files: Mapping[Path, str],
    variables: Mapping[str, str | None],
    command: Sequence[str],
) -> str:
    """Commands of a shell that do the same."""
    lines = [f"# {program.title}: {program.source}"]
    for path, content in files.items():
        folder, file = shlex.quote(str(path.parent)), shlex.quote(str(path))
        lines.append(f"(umask 077 && mkdir -p {folder} && cat > {file}) <<'EOF'")
        lines.append(f"{content.rstrip()}\nEOF")
    lines.append("unset " + " ".join(name for name, value in variables.items() if value is None))
    given = ((name, value) for name, value in variables.items() if value is not None)
    lines += [f"export {name}={shlex.quote(value)}" for name, value in given]
    return "\n".join([*lines, shlex.join(command)])


def execute(command: Sequence[str], variables: Mapping[str, str | None]) -> None:
    """Replace this process by the program, whose exit code and signals are then its own.

    Raises click.ClickException.
    """
    environment = {**os.environ, **variables}
    given = {name: value for name, value in environment.items() if value is not None}
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python, and programs inherit it
        signal.signal(ignored, signal.SIG_DFL)
    sys.stdout.flush()
    try:
        os.execve(command[0], list(command), given)  # noqa: S606  (no shell: nothing to quote)
    except OSError as error:
        text = f"{command[0]} cannot be started: {error.strerror}"
        raise click.ClickException(text) from error

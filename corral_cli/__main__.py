"""The `corral` command: all subcommands in one group, failures printed as one line."""

import errno
import json
import platform
import sys
from importlib.metadata import version as installed_version

import click

from corral_cli.adapters import adapters
from corral_cli.audit import audit
from corral_cli.backup import backup, check, restore
from corral_cli.batch import batch
from corral_cli.chat import chat
from corral_cli.completion import completion
from corral_cli.config import config
from corral_cli.connection import tls_options
from corral_cli.db import db
from corral_cli.doctor.examination import doctor
from corral_cli.jobs import jobs
from corral_cli.keys import keys
from corral_cli.limits import limits
from corral_cli.migration.commands import export_group, import_group, threads
from corral_cli.models import models
from corral_cli.output import object_option
from corral_cli.projects import projects
from corral_cli.serve import serve
from corral_cli.top.load_watch import top
from corral_cli.up.command import up
from corral_cli.usage import usage
from svc_kit.lifecycle import StartupError

_SERVERS = frozenset({"up", "serve"})
_FILE_ERRORS = frozenset(
    {
        errno.EACCES,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EIO,
        errno.EISDIR,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOSPC,
        errno.ENOTDIR,
        errno.EPERM,
        errno.EROFS,
    }
)


class Commands(click.Group):
    """A group whose subcommands report file errors, such as a full disk, as one line.

    Servers are excluded: their traceback is needed to find the cause.
    """

    def invoke(self, ctx: click.Context) -> object:
        """Run the subcommand. Raises click.ClickException."""
        try:
            return super().invoke(ctx)
        except OSError as error:
            if ctx.invoked_subcommand in _SERVERS or error.errno not in _FILE_ERRORS:
                raise
            path = f"{error.filename}: " if error.filename else ""
            raise click.ClickException(f"{path}{error.strerror}") from error


@click.group(cls=Commands)
@click.option("--no-color", envvar="NO_COLOR", default="", hidden=True)
@click.version_option(package_name="corral", message="%(package)s %(version)s")
@tls_options
@click.pass_context
def cli(context: click.Context, no_color: str) -> None:
    """Serve GGUF models behind the OpenAI API and gRPC."""
    if no_color:
        context.color = False


@cli.command("version")
@object_option
def version(as_json: bool) -> None:
    """Print the versions to include in a bug report."""
    names = ("corral", "llama-cpp-python", "grpcio", "protobuf")
    versions = {name: installed_version(name) for name in names}
    versions |= {"Python": platform.python_version(), "platform": platform.platform()}
    lines = (f"{name} {version}" for name, version in versions.items())
    click.echo(json.dumps(versions, indent=2) if as_json else "\n".join(lines))


for command in (
    up,
    serve,
    chat,
    batch,
    models,
    adapters,
    config,
    db,
    check,
    backup,
    restore,
    doctor,
    completion,
    projects,
    limits,
    keys,
    usage,
    audit,
    top,
    jobs,
    export_group,
    import_group,
    threads,
):
    cli.add_command(command)


def main() -> None:
    """Run the command. A StartupError is printed as one message, with exit code 1."""
    try:
        cli()
    except StartupError as error:
        click.echo(f"corral: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()

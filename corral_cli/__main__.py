"""The `corral` command: every subcommand in one group, and failures as one line."""

import errno
import platform
import sys
from importlib.metadata import version as installed_version

import click

from corral_cli.adapters import adapters
from corral_cli.batch import batch
from corral_cli.chat import chat
from corral_cli.config import config
from corral_cli.db import db
from corral_cli.jobs import jobs
from corral_cli.keys import keys
from corral_cli.migration.commands import export_group, import_group, threads
from corral_cli.models import models
from corral_cli.projects import projects
from corral_cli.serve import serve
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
    """Subcommands, of which those for operators tell of a full disk, or of a file that they may not
    read or write, in one line. Of a server it is the traceback that helps."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the subcommand. Raises click.ClickException."""
        try:
            return super().invoke(ctx)
        except OSError as problem:
            if ctx.invoked_subcommand in _SERVERS or problem.errno not in _FILE_ERRORS:
                raise
            where = f"{problem.filename}: " if problem.filename else ""
            raise click.ClickException(f"{where}{problem.strerror}") from problem


@click.group(cls=Commands)
def cli() -> None:
    """Serve GGUF models behind the OpenAI API and gRPC."""


@cli.command("version")
def version() -> None:
    """Print the versions that a bug report needs."""
    names = ("corral", "llama-cpp-python", "grpcio", "protobuf")
    versions = [f"{name} {installed_version(name)}" for name in names]
    click.echo("\n".join([*versions, f"Python {platform.python_version()}", platform.platform()]))


for command in (
    up,
    serve,
    chat,
    batch,
    models,
    adapters,
    config,
    db,
    projects,
    keys,
    usage,
    jobs,
    export_group,
    import_group,
    threads,
):
    cli.add_command(command)


def main() -> None:
    """Run the command; what keeps it from starting is one message and exit code 1."""
    try:
        cli()
    except StartupError as error:
        click.echo(f"corral: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()

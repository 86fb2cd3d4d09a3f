"""The `corral` command: all subcommands in one group, failures printed as one line."""

import errno
import json
import platform
import sys
from importlib import import_module
from importlib.metadata import version as installed_version
from pathlib import Path

import click

from corral_cli.connection import tls_options
from corral_cli.output import echo, object_option
from svc_kit.lifecycle import StartupError, StartupOutage, importing_modules
from svc_kit.terminal import escape

_COMMANDS = {
    "adapters": "adapters:adapters",
    "audit": "audit:audit",
    "backup": "backup:backup",
    "batch": "batch:batch",
    "chat": "chat:chat",
    "check": "backup:check",
    "completion": "completion:completion",
    "config": "config:config",
    "db": "db:db",
    "doctor": "doctor.examination:doctor",
    "export": "migration.commands:export_group",
    "import": "migration.commands:import_group",
    "jobs": "jobs:jobs",
    "keys": "keys:keys",
    "launch": "launch.launcher:launch",
    "limits": "limits:limits",
    "models": "models:models",
    "projects": "projects:projects",
    "restore": "backup:restore",
    "serve": "serve:serve",
    "sessions": "top.sessions:sessions",
    "threads": "migration.commands:threads",
    "top": "top.load_watch:top",
    "up": "up.command:up",
    "usage": "usage:usage",
}
"""Module and function of each subcommand."""
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
    """A group that imports a subcommand when it is used, and reports file errors of subcommands,
    such as a full disk, as one line.

    Servers are excluded: their traceback is needed to find the cause.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all subcommands."""
        return sorted({*self.commands, *_COMMANDS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a subcommand."""
        if cmd_name in _COMMANDS and cmd_name not in self.commands:
            module, _, function = _COMMANDS[cmd_name].partition(":")
            with importing_modules():
                self.add_command(getattr(import_module(f"corral_cli.{module}"), function))
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> object:
        """Run the subcommand. Raises click.ClickException."""
        try:
            return super().invoke(ctx)
        except click.UsageError:  # of the command line alone
            raise
        except click.ClickException as error:  # its message may contain a server's
            raise click.ClickException(escape(error.message, kept="\n")) from error
        except OSError as error:
            if ctx.invoked_subcommand in _SERVERS or error.errno not in _FILE_ERRORS:
                raise
            path = f"{error.filename}: " if error.filename else ""
            raise click.ClickException(f"{path}{error.strerror}") from error


@click.group(cls=Commands)
@click.option("--no-color", envvar="NO_COLOR", default="", hidden=True)
@click.version_option(package_name="corral", message="%(package)s %(version)s")
@click.option(
    "--profiles",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="CORRAL_PROFILES",
    help="The file of profiles. Default: profiles.toml in the user's configuration folder.",
)
@tls_options
@click.pass_context
def cli(context: click.Context, no_color: str, profiles: Path | None) -> None:
    """Serve GGUF models behind the OpenAI API and gRPC."""
    del profiles  # read by the subcommands (`access.py`)
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
    echo(json.dumps(versions, indent=2) if as_json else "\n".join(lines))


def main() -> None:
    """Run the command. A StartupError is printed as one message, with exit code 1; with that of
    StartupOutage if the command may succeed later."""
    try:
        cli()
    except StartupError as error:
        echo(f"corral: {error}", err=True)
        sys.exit(error.EXIT_CODE if isinstance(error, StartupOutage) else 1)


if __name__ == "__main__":
    main()

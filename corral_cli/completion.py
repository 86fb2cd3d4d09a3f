"""`corral completion`: shell completion of commands, options and their values."""

import click
from click.shell_completion import get_completion_class

from corral_cli.output import echo

_VARIABLE = "_CORRAL_COMPLETE"
_HELP = """Print the completion script of a shell.

\b
bash: corral completion bash > ~/.local/share/bash-completion/completions/corral
zsh:  corral completion zsh > "${fpath[1]}/_corral"
fish: corral completion fish > ~/.config/fish/completions/corral.fish
"""


@click.command("completion", help=_HELP)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script; it asks `corral` itself for the completions."""
    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"there is no completion for {shell}")
    root = context.find_root().command
    echo(found(root, {}, "corral", _VARIABLE).source())

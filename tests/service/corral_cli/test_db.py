"""`corral db` with the embedded database of a data folder."""

from pathlib import Path

from click.testing import CliRunner, Result

from corral_cli.__main__ import cli
from svc_kit.lifecycle import StartupError


def db(command: str, folder: Path) -> Result:
    return CliRunner().invoke(cli, ["db", command], env={"CORRAL_CONTROL_DATA_DIR": str(folder)})


def test_a_database_is_checked_upgraded_and_checked(tmp_path: Path) -> None:
    """The error for an old schema has the remedy. A second upgrade changes nothing."""
    outdated = db("check", tmp_path)
    upgraded = [db("upgrade", tmp_path) for _ in range(2)]
    checked = db("check", tmp_path)

    assert isinstance(outdated.exception, StartupError)
    assert "corral db upgrade" in str(outdated.exception)
    assert [each.exit_code for each in (*upgraded, checked)] == [0, 0, 0]
    assert upgraded[0].output == upgraded[1].output
    revision = upgraded[0].output.removeprefix("the database is at revision ").strip()
    assert checked.output.startswith(f"the database is at revision {revision},")

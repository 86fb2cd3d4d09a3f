"""The checks of settings before a service starts, the same for all commands.

`corral config check`, `doctor` and `up` check all services together, as `up` runs them on one
machine; `corral serve` and `config check --service` check one alone.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from svc_kit.lifecycle import StartupError
from svc_kit.settings.checks import Problem, SettingsInvalid, find_listener_conflicts
from svc_kit.settings.groups import read_secret


def check_alone(settings: Any, *, is_running: bool = False) -> None:
    """Check the settings of a service that runs by itself. `is_running`: it is running already.
    Raises SettingsInvalid."""
    problems = list(_find_problems({settings.toml_table: settings}, is_running=is_running))
    token = settings.service_token_file
    if token is not None and (text := _find_token_problem(token)):
        problems.append(settings.problem("service_token_file", text))
    if problems:
        raise SettingsInvalid(problems)


def check_together(services: Mapping[str, Any], *, is_running: bool = False) -> None:
    """Check the settings of all services on one machine, with the same token file. `is_running`:
    they are running already. Raises SettingsInvalid.
    """
    problems = list(_find_problems(services, is_running=is_running))
    tokens = {settings.service_token_file for settings in services.values()}
    for path in sorted(token for token in tokens if token.exists()):  # else `corral up` creates it
        if text := _find_token_problem(path):
            problems.append(Problem("", f"service_token_file: {text}"))
    if problems:
        raise SettingsInvalid(problems)


def _find_problems(services: Mapping[str, Any], *, is_running: bool = False) -> Iterator[Problem]:
    for settings in services.values():
        yield from settings.find_problems()
    yield from find_listener_conflicts(
        [listener for settings in services.values() for listener in settings.listeners]
    )
    if "inference" in services:
        yield from _find_model_problems(services, is_running=is_running)


def _find_model_problems(services: Mapping[str, Any], *, is_running: bool) -> Iterator[Problem]:
    # Imported here because it is slow, and only inference has models.
    from inference_svc.model_pool.settings_check import check_models, find_embedding_problem

    inference, control = services["inference"], services.get("control")
    checked = check_models(inference, is_running=is_running)
    yield from checked.problems
    if control is None or control.embedding_model is None or not checked.files:
        return
    if problem := find_embedding_problem(control.embedding_model, inference, checked):
        yield control.problem("embedding_model", problem)


def _find_token_problem(path: Path) -> str | None:
    try:
        read_secret(path)
    except StartupError as error:
        return str(error)
    return None

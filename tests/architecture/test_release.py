"""The version of a release is the same wherever it is written."""

import re
import tomllib

from tests.architecture.test_house_rules import ROOT

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]


def test_images_have_the_version() -> None:
    """In the Dockerfile and in the manifests of Kubernetes."""
    build = (ROOT / "deploy/Dockerfile").read_text("utf-8")
    manifests = (ROOT / "deploy/kubernetes").rglob("kustomization.yaml")
    tags = [
        tag for path in manifests for tag in re.findall(r"newTag: (\S+)", path.read_text("utf-8"))
    ]

    assert re.findall(r"ARG VERSION=(\S+)", build) == [VERSION]
    assert {tag.removesuffix("-cuda") for tag in tags} == {VERSION}


def test_the_changelog_ends_with_the_release() -> None:
    """Below what is not released, and an installation of it is kept for the tests of upgrades."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    newest = re.findall(r"^## \[(\d\S*)\]", text, re.M)[0]
    states = ROOT / "tests/upgrade/data" / f"release-{VERSION.rpartition('.')[0]}"

    assert newest == VERSION
    assert {path.name for path in states.iterdir()} == {
        f"{database}.{suffix}"
        for database in ("sqlite", "postgres")
        for suffix in ("json", "tar.xz")
    }

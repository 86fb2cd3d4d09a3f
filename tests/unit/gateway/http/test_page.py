"""The files of the page: vendored libraries and security headers."""

import hashlib
import json
import re
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

import gateway
from gateway.http.page import page_router, security_headers
from tests.architecture.test_house_rules import ROOT

PAGE = Path(gateway.__file__).parent / "page"
VENDOR = PAGE / "vendor"
MANIFEST = json.loads((VENDOR / "manifest.json").read_text())
FILES = [file for package in MANIFEST for file in package["files"]]


async def get(path: str, **headers: str) -> httpx.Response:
    app = FastAPI()
    app.include_router(page_router())
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return await client.get(path, headers=headers)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file["path"])
def test_a_vendored_file_is_what_was_published(file: dict[str, str]) -> None:
    """Its hash is in the manifest, with which `make page-vendor` fetches it again."""
    assert hashlib.sha256((VENDOR / file["path"]).read_bytes()).hexdigest() == file["sha256"]


def test_the_manifest_lists_every_vendored_file() -> None:
    """With a licence, whose text lies beside it, and a name in NOTICE."""
    notice = (ROOT / "NOTICE").read_text().replace("\n", " ")
    names = {path.relative_to(VENDOR).as_posix() for path in VENDOR.rglob("*") if path.is_file()}

    assert names == {"manifest.json", *(file["path"] for file in FILES)}
    for package in MANIFEST:
        assert package["licence"]
        assert f" {package['name']}" in notice
        assert any(file["path"].startswith("licences/") for file in package["files"])


async def test_files_have_a_strict_policy() -> None:
    """No inline script except the import map, no inline style, no eval, no other host."""
    response = await get("/ui/")

    assert response.status_code == 200
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert (await get("/ui/js/main.js")).headers["content-security-policy"] == policy
    assert re.findall(r"<script(?![^>]*src=)[^>]*>", response.text) == ['<script type="importmap">']


def test_the_policy_has_the_hash_of_the_import_map() -> None:
    policies = {
        security_headers(f'<script type="importmap">{text}</script>')["content-security-policy"]
        for text in ("{}", "{ }")
    }

    assert len(policies) == 2


def test_the_import_map_names_files_that_exist() -> None:
    """Every bare name of an import, and no file that is not there."""
    (text,) = re.findall(r'importmap">(.*?)</script>', (PAGE / "index.html").read_text(), re.DOTALL)
    imports = json.loads(text)["imports"]
    used = {
        name
        for path in [*(PAGE / "js").glob("*.js"), *VENDOR.glob("*js")]
        for name in re.findall(
            r'(?:^|;)(?:import|export)\b[^;"]*\bfrom ?"([^."][^"]*)"',
            path.read_text(),
            re.MULTILINE,
        )
    }

    assert used == set(imports)
    assert all((PAGE / path).is_file() for path in imports.values())


def test_the_page_is_small() -> None:
    """What is fetched before anything is shown; the other libraries are fetched when needed."""
    index = (PAGE / "index.html").read_text()
    (text,) = re.findall(r'importmap">(.*?)</script>', index, re.DOTALL)
    libraries = [PAGE / path for path in json.loads(text)["imports"].values()]
    files = [*PAGE.glob("*.*"), *(PAGE / "js").glob("*.js"), *libraries]

    assert sum(path.stat().st_size for path in files) < 400_000


@pytest.mark.parametrize("path", ["/ui/../config.py", "/ui/%2e%2e/config.py", "/ui/none.js"])
async def test_other_files_are_not_served(path: str) -> None:
    """404, also for a path that leads out of the folder."""
    assert (await get(path)).status_code == 404


@pytest.mark.parametrize("path", ["/", "/ui"])
async def test_the_page_is_found_from_the_root(path: str) -> None:
    """By a relative redirect, so that a proxy may add a prefix."""
    response = await get(path, accept="text/html,*/*;q=0.8")

    assert (response.status_code, response.headers["location"]) == (307, "ui/")


async def test_programs_find_ollamas_greeting_at_the_root() -> None:
    """Ollama's clients ask for it, and Claude Code."""
    assert (await get("/", accept="*/*")).text == "Ollama is running"


async def test_an_unchanged_file_is_not_sent_again() -> None:
    """A browser asks with the etag and gets 304."""
    etag = (await get("/ui/app.css")).headers["etag"]

    assert (await get("/ui/app.css", **{"if-none-match": etag})).status_code == 304


async def test_files_are_compressed_for_those_who_accept_it() -> None:
    """To a third; the file that a browser has is not sent again in either form."""
    path, gzip = "/ui/js/main.js", {"accept-encoding": "br, gzip"}
    plain = await get(path, **{"accept-encoding": "identity"})
    packed = await get(path, **gzip)
    part = await get(path, range="bytes=0-9", **gzip)

    assert packed.headers["content-encoding"] == "gzip"
    assert packed.content == plain.content == (PAGE / "js/main.js").read_bytes()
    assert int(packed.headers["content-length"]) < len(plain.content) / 2
    assert packed.headers["content-type"] == plain.headers["content-type"]
    assert plain.headers["vary"] == packed.headers["vary"] == "accept-encoding"
    assert part.content == plain.content[:10]
    for response in (plain, packed):
        again = await get(path, **{"if-none-match": response.headers["etag"]}, **gzip)
        assert again.status_code == 304


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip;q=0", None),
        ("br, gzip; q=0.000, identity", None),
        ("notgzip", None),
        ("deflate, GZIP;q=0.01", "gzip"),
        ("gzip;q=1.0, *;q=0", "gzip"),
    ],
)
async def test_a_weight_of_zero_refuses_gzip(accepted: str, encoding: str | None) -> None:
    response = await get("/ui/app.css", **{"accept-encoding": accepted})

    assert response.headers.get("content-encoding") == encoding

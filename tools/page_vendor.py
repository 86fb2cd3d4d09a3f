"""Fetch the libraries of the page again with npm, by name, version and hash.

`gateway/page/vendor/manifest.json` lists them. After a change of a version there, `--update` writes
the new files and their hashes; without it, a file with another hash is an error.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

VENDOR = Path(__file__).resolve().parents[1] / "gateway" / "page" / "vendor"
MANIFEST = VENDOR / "manifest.json"


def main() -> int:
    """Write all files of the manifest. Returns 1 if one has another hash."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--update", action="store_true", help="write new hashes to the manifest")
    update = parser.parse_args().update
    packages: list[dict[str, Any]] = json.loads(MANIFEST.read_text(encoding="utf-8"))
    changed = [path for package in packages for path in fetch(package, update=update)]
    MANIFEST.write_text(json.dumps(packages, indent=2) + "\n", encoding="utf-8")
    for path in changed:
        print(f"{path}: {'new hash' if update else 'the hash is not that of the manifest'}")
    return 1 if changed and not update else 0


def fetch(package: dict[str, Any], *, update: bool) -> list[str]:
    """Write the files of one package. Returns those whose hash is not that of the manifest."""
    changed = []
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", f"{package['name']}@{package['version']}"]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as members:
            for file in package["files"]:
                member = members.extractfile(f"package/{file['source']}")
                content = b"" if member is None else member.read()
                digest = hashlib.sha256(content).hexdigest()
                if digest != file["sha256"]:
                    changed.append(file["path"])
                if digest == file["sha256"] or update:
                    file["sha256"] = digest
                    (VENDOR / file["path"]).write_bytes(content)
    return changed


if __name__ == "__main__":
    sys.exit(main())

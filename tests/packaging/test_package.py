"""What an installed llamita brings along: builds the sdist and, from it, the wheel, and looks inside."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("engine", "quant", "layers", "loaders", "models")
IGNORED = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the sdist and the wheel that was built from that sdist."""
    folder = tmp_path_factory.mktemp("package")
    source = folder / "source"
    shutil.copytree(ROOT, source, ignore=IGNORED)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(source)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return folder / "dist"


@pytest.fixture(scope="module")
def wheel_names(dist: Path) -> list[str]:
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_wheel_is_pure_python(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")


def test_wheel_has_one_top_level_name(wheel_names: list[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"llamita"}


def test_wheel_holds_the_code_and_nothing_else(wheel_names: list[str]) -> None:
    inside = {name.split("/", 1)[1] for name in wheel_names if name.startswith("llamita/")}
    expected = {"__init__.py", "cli.py", "py.typed"}
    for room in ROOMS:
        expected |= {path.relative_to(ROOT).as_posix() for path in (ROOT / room).rglob("*.py")}
    assert inside == expected


def test_wheel_carries_the_licence_and_the_command(dist: Path, wheel_names: list[str]) -> None:
    (licence,) = (name for name in wheel_names if name.endswith("licenses/LICENSE"))
    (entry_points,) = (name for name in wheel_names if name.endswith("entry_points.txt"))
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()
        assert b"llamita = llamita.cli:main" in archive.read(entry_points)


def test_sdist_holds_what_a_packager_needs(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "tests/pytest.ini", "tests/conftest.py"} <= names
    tests = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")}
    assert tests <= names
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]


def test_licence_is_apache_2() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text and "Version 2.0, January 2004" in text and "END OF TERMS AND CONDITIONS" in text

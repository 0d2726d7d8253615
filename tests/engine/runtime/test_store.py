"""The kernel store: first use, later use, damage, races, folders that cannot be written, edits and CPU targets."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import llamita
from llamita.engine.errors import KernelError
from llamita.engine.kernels.targets import available_targets
from llamita.engine.runtime.store import KernelSpec, KernelStore, object_name

SCRIPT = Path(__file__).parents[2] / "kernel_process.py"
GATE = KernelSpec.of("quantize", gate="silu", width=32)
NORM = KernelSpec.of("quantize", norm=True, width=32)


def start(out, *args, **environment):
    """The script of tests/kernel_process.py in a process of its own."""
    command = [sys.executable, str(SCRIPT), str(out), *args]
    return subprocess.Popen(command, env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True)


def finish(process, out):
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    with np.load(out) as results:
        return dict(results)


def objects(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A store with two kernels, and what was reported while it was filled."""
    folder, seen = tmp_path_factory.mktemp("store"), []
    KernelStore(folder).load([GATE, NORM, GATE], lambda *event: seen.append(event))
    return folder, seen


@pytest.fixture
def store_folder(filled, tmp_path):
    """A copy of it to damage."""
    return Path(shutil.copytree(filled[0], tmp_path / "store"))


def test_first_use_compiles_and_says_how_far_it_is(filled):
    folder, seen = filled
    assert seen == [("compile", 0, 2), ("compile", 1, 2), ("compile", 2, 2)]
    assert objects(folder) == sorted([object_name(GATE), object_name(NORM)])  # and no temporary files


def test_helpers_import_nothing_from_the_working_folder(tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    for name in ("json", "numba"):  # two modules that a helper imports
        (work / f"{name}.py").write_text("open('imported', 'w')\nraise SystemExit(1)\n")
    monkeypatch.chdir(work)
    store, seen = KernelStore(tmp_path / "store"), []
    store.load([KernelSpec.of("quantize", width=8)], lambda *event: seen.append(event))
    assert seen == [("compile", 0, 1), ("compile", 1, 1)]  # by a helper: what is compiled here is not reported
    assert not (work / "imported").exists()


def test_later_use_compiles_nothing(filled):
    folder, seen = filled[0], []
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    addresses = KernelStore(folder).load([NORM, GATE], lambda *event: seen.append(event))
    assert set(addresses) == {NORM, GATE} and all(addresses.values()) and len(set(addresses.values())) == 2
    assert seen == []
    assert before == {path: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_addresses_last(filled):
    store = KernelStore(filled[0])
    assert store.load([GATE]) == store.load([GATE])
    assert store.load([]) == {}




@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: data[:20], id="shorter than its checksum"),
        pytest.param(lambda data: data[:-1], id="truncated"),
        pytest.param(lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :], id="one bit"),
        pytest.param(lambda data: data + b"x", id="longer"),
    ],
)
def test_a_damaged_object_is_compiled_again(store_folder, damage):
    path, seen = store_folder / object_name(GATE), []
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert KernelStore(store_folder).load([GATE, NORM], lambda *event: seen.append(event))[GATE]
    assert seen == [("compile", 0, 1), ("compile", 1, 1)]
    repaired = KernelStore(store_folder)
    seen.clear()
    assert repaired.load([GATE], lambda *event: seen.append(event)) and seen == []


def test_a_folder_in_an_objects_place(store_folder):
    (store_folder / object_name(GATE)).unlink()
    (store_folder / object_name(GATE)).mkdir()
    assert KernelStore(store_folder).load([GATE])[GATE]


@pytest.mark.parametrize("spec", [KernelSpec.of("no_such_kernel"), KernelSpec.of("quantize", colour="red"), KernelSpec.of("compile")])
def test_what_is_no_kernel_is_an_error_that_names_it(filled, spec):
    store = KernelStore(filled[0])
    with pytest.raises(KernelError, match=rf"^kernel {spec.module} .*could not be compiled") as error:
        store.load([GATE, spec])
    assert "\n" not in str(error.value)
    assert store.load([GATE])[GATE]  # the store is still usable


def test_sources_that_changed_since_the_start_are_not_kept_under_the_old_name(tmp_path, monkeypatch):
    """As when the package is upgraded while a process runs: its arguments may not fit the new kernels."""
    from llamita.engine.runtime import store

    monkeypatch.setattr(store, "_sources", lambda: "what this process began with")
    store._environment.cache_clear()
    with pytest.raises(KernelError, match="have changed since this process started"):
        KernelStore(tmp_path).load([GATE])
    store._environment.cache_clear()
    assert objects(tmp_path) == []


def test_two_processes_fill_an_empty_store_at_once(tmp_path):
    outs = [tmp_path / f"{i}.npz" for i in range(2)]
    processes = [start(out, LLAMITA_HOME=str(tmp_path / "home")) for out in outs]
    first, second = (finish(process, out) for process, out in zip(processes, outs, strict=True))
    assert np.array_equal(first["gated"], second["gated"])
    assert all(name.endswith(".o") and not name.startswith(".") for name in objects(tmp_path / "home" / "kernels"))


def test_a_warm_start_does_not_import_numba(tmp_path):
    first, second = (finish(start(tmp_path / "out.npz"), tmp_path / "out.npz") for _ in range(2))
    assert not second["numba"]
    assert np.array_equal(first["gated"], second["gated"])


def test_a_place_where_no_folder_can_be(tmp_path):
    """As with a read-only home: everything runs, nothing is kept."""
    (tmp_path / "file").write_text("")
    results = finish(start(tmp_path / "out.npz", LLAMITA_HOME=str(tmp_path / "file")), tmp_path / "out.npz")
    assert np.isfinite(results["gated"]).all()


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="the user may write everywhere")
def test_a_read_only_folder(store_folder):
    (store_folder / object_name(GATE)).unlink()
    store_folder.chmod(0o555)
    try:
        assert KernelStore(store_folder).load([GATE, NORM])[GATE]
        assert objects(store_folder) == [object_name(NORM)]
    finally:
        store_folder.chmod(0o755)


@pytest.mark.skipif(sys.platform == "win32", reason="no limits on file sizes")
@pytest.mark.parametrize("limit", [1000, 66000])
def test_a_full_disk(tmp_path, limit):
    """Stood in for by a limit on file sizes; with 66000 bytes the folder looks writable at first."""
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from llamita.engine.runtime.store import KernelSpec, KernelStore\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        "store = KernelStore(Path(sys.argv[1]))\n"
        f"print(all(store.load([KernelSpec.of('matmul', dense='f32', width=32), KernelSpec{tuple(GATE.__dict__.values())!r}]).values()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "True", done.stderr
    assert not [name for name in objects(tmp_path) if not name.endswith(".o")]  # no half files


@pytest.fixture(scope="module")
def names_after_edits(tmp_path_factory):
    """Names of an object by a copy of the package: as it is, and after an edit in each of its kernel files in turn."""
    root = tmp_path_factory.mktemp("copy")
    package = Path(llamita.__file__).parent
    for part in ("__init__.py", "engine"):
        source = package / part
        if source.is_dir():
            shutil.copytree(source, root / "llamita" / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (root / "llamita").mkdir(exist_ok=True)
            shutil.copy(source, root / "llamita" / part)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from llamita.engine.runtime import store\n"
        "assert store.__file__.startswith(sys.argv[1])\n"
        "spec, folder = store.KernelSpec.of('runner', role='lead'), Path(sys.argv[1], 'llamita', 'engine')\n"
        "def name():\n"
        "    store._sources.cache_clear(); store._environment.cache_clear()\n"
        "    return store.object_name(spec)\n"
        "print('', name())\n"
        "for path in [*sorted((folder / 'kernels').rglob('*.py')), folder / 'kv_cache.py']:\n"
        "    text = path.read_bytes()\n"
        "    path.write_bytes(text + b'\\n')\n"
        "    print(path.relative_to(folder), name())\n"
        "    path.write_bytes(text)\n"
        "print('again', name())\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(root)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = (line.rsplit(" ", 1) for line in done.stdout.splitlines())
    return {file.strip(): name for file, name in lines}


def test_an_edit_in_any_kernel_file_changes_the_key(names_after_edits):
    original = names_after_edits.pop("")
    assert names_after_edits.pop("again") == original
    assert names_after_edits.pop("kv_cache.py") == original  # no kernel's source
    assert len(names_after_edits) >= 8
    assert len({original, *names_after_edits.values()}) == len(names_after_edits) + 1


def test_parameters_and_versions_change_the_key(monkeypatch):
    from llamita.engine.runtime import store

    names = {object_name(GATE), object_name(NORM), object_name(KernelSpec.of("quantize", gate="silu", width=16))}
    assert len(names) == 3
    for package in ("numba", "llvmlite"):
        store._environment.cache_clear()
        real = store._version
        with monkeypatch.context() as patch:
            patch.setattr(store, "_version", lambda name, package=package, real=real: b"0" if name == package else real(name))
            names.add(object_name(GATE))
    store._environment.cache_clear()
    assert len(names) == 5


@pytest.fixture(scope="module")
def on_this_cpu(tmp_path_factory):
    """Results of every kernel of the script on the best target."""
    out = tmp_path_factory.mktemp("host") / "out.npz"
    return finish(start(out, "all", LLAMITA_TARGET=""), out)


@pytest.mark.parametrize("target", available_targets()[1:])
def test_another_target_gives_the_same_numbers(tmp_path, on_this_cpu, target):
    """Every step is exact or rounded alike; only the generic target has no fused multiply-add.

    There a last bit may move an activation to the next integer, of 127 or 32512.
    """
    results = finish(start(tmp_path / "out.npz", "all", LLAMITA_TARGET=target), tmp_path / "out.npz")
    close = {"gated": 1e-6, "block 8": 3e-2, "block 16": 2e-4, "block 32": 1e-5}
    for name, tolerance in close.items():
        expected = on_this_cpu[name]
        if target == "generic":
            assert np.abs(results[name] - expected).max() <= tolerance * np.abs(expected).max(), name
        else:
            assert np.array_equal(results[name], expected), name


def test_an_unknown_target_is_an_error_that_lists_the_known_ones(tmp_path, monkeypatch):
    monkeypatch.setenv("LLAMITA_TARGET", "z80")
    with pytest.raises(KernelError, match=r"LLAMITA_TARGET: expected one of .*generic, got 'z80'"):
        KernelStore(tmp_path).load([GATE])

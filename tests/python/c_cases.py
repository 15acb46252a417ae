"""Programs in C, compiled against the C library, which is built now."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from conftest import ROOT, build_capi, run_program

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")


@pytest.fixture(scope="session")
def capi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the C library, built now."""
    if shutil.which("cargo") is None or not (ROOT / "Cargo.toml").exists():
        pytest.skip("no cargo: the C library is built from the sources")
    library = (build_capi() / "libfarrow_capi.so").resolve()
    folder = tmp_path_factory.mktemp("capi")
    for name in ("libfarrow.so", "libfarrow.so.0.1"):
        (folder / name).symlink_to(library)
    return folder


def compile_c(source: str, out: Path, capi: Path) -> Path:
    run_program(
        "gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", ROOT / "cpp" / source,
        f"-I{ROOT / 'cpp' / 'include'}", f"-L{capi}", "-lfarrow", f"-Wl,-rpath,{capi}",
        "-o", out,
    )  # fmt: skip
    return out

"""What the stub says is what there is; everything public is documented and typed."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import farrow
from farrow import _native

PACKAGE = Path(farrow.__file__).parent
CONFIG = Path(__file__).resolve().parents[3] / "pyproject.toml"

# The surface that users may build on; a change of it is a change of the contract.
SURFACE = {
    "address", "at", "barrier", "close", "contains", "create", "create_many",
    "create_namespace", "delete", "delete_many", "drop_namespace", "drop_permission", "evict",
    "forget_node", "get", "get_many", "huge_table", "list", "locate",
    "memory_pool", "metadata", "namespace", "namespaces", "node", "nodes", "permissions", "permit",
    "pin", "put", "put_many", "set_flags", "stats", "subscribe", "unpin", "wait", "wait_flags",
}  # fmt: skip


def test_surface() -> None:
    public = {name for name in vars(farrow.Client) if not name.startswith("_")}
    assert public == SURFACE
    assert {name for name in vars(farrow.Writer) if not name.startswith("_")} == {
        "abort",
        "buffer",
        "nbytes",
        "seal",
        "write",
    }
    assert {name for name in vars(farrow.ObjectRef) if not name.startswith("_")} == {
        "hex",
        "id",
        "name",
    }
    for name in farrow.__all__:
        assert hasattr(farrow, name), name


def test_everything_public_is_documented() -> None:
    things = [farrow, farrow.connect, farrow.Client, farrow.Writer, farrow.ObjectRef]
    things += [getattr(farrow, name) for name in farrow.__all__ if name[0].isupper()]
    for thing in things:
        assert inspect.getdoc(thing), thing
    for cls in (farrow.Client, farrow.Writer, farrow.ObjectRef):
        for name in vars(cls):
            if not name.startswith("_"):
                assert inspect.getdoc(getattr(cls, name)), f"{cls.__name__}.{name}"


def test_package_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()
    assert (PACKAGE / "_native.pyi").exists()


def test_stub_agrees_with_the_extension(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    # An installed package is found as any other; in its folder mypy would take the others there
    # for the user's own.
    environment = dict(os.environ)
    if PACKAGE.parent.name != "site-packages":
        environment["MYPYPATH"] = str(PACKAGE.parent)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy.stubtest",
            "farrow._native",
            "--ignore-disjoint-bases",
            "--mypy-config-file",
            str(CONFIG),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_name_in_the_stub_exists() -> None:
    tree = ast.parse((PACKAGE / "_native.pyi").read_text())
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            assert hasattr(_native, node.name), node.name
            if isinstance(node, ast.ClassDef):
                for member in node.body:
                    if isinstance(member, ast.FunctionDef):
                        assert hasattr(getattr(_native, node.name), member.name), member.name


def test_classes_cannot_be_made_by_hand() -> None:
    for cls in (farrow.Client, farrow.Writer):
        with pytest.raises(TypeError):
            cls()


def test_survey() -> None:
    survey = _native.survey()
    assert survey["cores"] >= 1
    assert survey["page_bytes"] >= 4096
    assert survey["cpu"]["line_bytes"] in (32, 64, 128, 256)
    assert survey["window"]["free"] in (True, False)
    assert isinstance(survey["tmpfs"], list)


def test_copy_buffers() -> None:
    buffers = _native.CopyBuffers(16 << 20)
    assert all(buffers.copy() > 0 for _ in range(3))
    with pytest.raises(farrow.InvalidArgument):
        _native.CopyBuffers(0)


def test_node_main_with_wrong_flags() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from farrow._native import node_main; print(node_main(['--what']))",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "2\n"
    assert "--what" in done.stderr

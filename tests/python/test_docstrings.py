"""``help()`` shows a whole docstring for each public name, and each example in one runs.

The texts of the extension lie in its stub.  ``help(farrow.Client)`` once said "see
`_native.pyi`", a file that users do not read.
"""

from __future__ import annotations

import ast
import doctest
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import farrow
from conftest import Cluster, Node
from farrow import _native, backup, events, huge, sharing

if TYPE_CHECKING:
    from collections.abc import Iterator

STUB = Path(farrow.__file__).parent / "_native.pyi"
CLASSES = [farrow.Client, farrow.HugeTable, farrow.ObjectRef, farrow.Writer, events.Subscription]
# They use what is in memory of their own process only.
CANNOT_FAIL = {"Client.close", "ObjectRef.hex", "Subscription.close", "sharing.uninstall"}
SECTIONS = re.compile(r"^(Args|Attributes|Returns|Raises|Examples):$", re.M)


def public() -> Iterator[tuple[str, Any]]:
    """Name and value of everything public: names of the package, and members of its classes."""
    for name in farrow.__all__:
        if name != "__version__":
            yield name, getattr(farrow, name)
    yield "events.Subscription", events.Subscription
    for name in sharing.__all__:
        yield f"sharing.{name}", getattr(sharing, name)
    for name in ("create", "restore", "verify"):
        yield f"backup.{name}", getattr(backup, name)
    for cls in CLASSES:
        for name, member in vars(cls).items():
            if not name.startswith("_"):
                yield f"{cls.__name__}.{name}", member


PUBLIC = dict(public())
FUNCTIONS = [name for name, value in PUBLIC.items() if inspect.isroutine(value)]
PROPERTIES = [name for name, value in PUBLIC.items() if inspect.isdatadescriptor(value)]
ERRORS = [n for n, v in PUBLIC.items() if isinstance(v, type) and issubclass(v, Exception)]


def sections(text: str) -> dict[str, str]:
    """The parts of a docstring by title; the first one has the title ""."""
    parts = SECTIONS.split(inspect.cleandoc(text))
    return {"": parts[0]} | dict(zip(parts[1::2], parts[2::2], strict=True))


def faults(text: str | None, parameters: list[str], returns: bool, raises: bool) -> list[str]:
    """What a docstring of a function lacks."""
    if not text:
        return ["docstring"]
    found = sections(text)
    summary = found[""].strip().partition("\n\n")[0]
    lacks = [] if summary.rstrip().endswith(".") else ["a summary that ends with a period"]
    described = re.findall(r"^    (\w+): \S", found.get("Args", ""), re.M)
    if described != parameters:
        lacks.append(f"arguments: {described} instead of {parameters}")
    if returns and not found.get("Returns", "").strip():
        lacks.append("Returns")
    if raises and not re.search(r"^    [\w, .]+: \S", found.get("Raises", ""), re.M):
        lacks.append("Raises")
    if ">>> " not in found.get("Examples", ""):
        lacks.append("an example")
    if "timeout" in parameters and "second" not in text:
        lacks.append("the unit of timeout")
    if "nbytes" in parameters and "byte" not in found.get("Args", ""):
        lacks.append("the unit of nbytes")
    return lacks


def returning(name: str) -> bool:
    """Whether a function returns something; for the extension the stub knows."""
    value = PUBLIC[name]
    annotations = getattr(value, "__annotations__", None)
    if annotations:
        return annotations["return"] not in ("None", None)
    cls, _, member = name.partition(".")
    for node in ast.walk(ast.parse(STUB.read_text())):
        if isinstance(node, ast.ClassDef) and node.name == cls:
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == member:
                    return ast.unparse(item.returns or ast.Constant(None)) != "None"
    raise AssertionError(f"{name} is not in the stub")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_a_whole_docstring(name: str) -> None:
    value = PUBLIC[name]
    parameters = [one for one in inspect.signature(value).parameters if one != "self"]
    assert faults(value.__doc__, parameters, returning(name), name not in CANNOT_FAIL) == []


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_property_has_a_whole_docstring(name: str) -> None:
    assert faults(PUBLIC[name].__doc__, [], False, False) == []


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_class_has_a_whole_docstring(cls: type) -> None:
    assert cls.__doc__ is not None
    assert faults(cls.__doc__, [], False, False) == []


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_has_a_whole_docstring(name: str) -> None:
    """Its attributes too: a program reads the numbers there."""
    cls = PUBLIC[name]
    assert cls.__doc__
    found = sections(cls.__doc__)
    assert found[""].strip()
    described = set(re.findall(r"^    (\w+): \S", found.get("Attributes", ""), re.M))
    missing = set(inspect.get_annotations(cls)) - described
    assert not missing, missing


@pytest.mark.parametrize("cls", [farrow.NodeInfo, huge.Partition], ids=lambda cls: cls.__name__)
def test_a_tuple_describes_its_fields(cls: Any) -> None:
    described = re.findall(r"^    (\w+): \S", sections(cls.__doc__)["Attributes"], re.M)
    assert described == list(cls._fields)


def test_nothing_public_lacks_a_docstring() -> None:
    things = PUBLIC | {f"events.{name}": getattr(events, name) for name in events.__all__}
    del things["events.Event"]  # a union of the others
    assert [name for name, value in things.items() if not value.__doc__] == []


@pytest.mark.parametrize("name", [*FUNCTIONS, *PROPERTIES, "Client", "Writer", "ObjectRef"])
def test_help_points_to_no_file(name: str) -> None:
    assert "_native.pyi" not in inspect.getdoc(PUBLIC[name])


def test_the_stub_is_what_help_shows() -> None:
    """All of the extension, its private parts too."""
    shown = 0
    for node in ast.parse(STUB.read_text()).body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            continue
        value = getattr(_native, node.name)
        text = ast.get_docstring(node)
        if text is not None:
            assert inspect.getdoc(value) == text, node.name
        for member in node.body if isinstance(node, ast.ClassDef) else []:
            text = ast.get_docstring(member) if isinstance(member, ast.FunctionDef) else None
            if text is not None:
                assert inspect.getdoc(getattr(value, member.name)) == text, member.name
                shown += 1
    assert shown > 50


def test_a_docstring_with_a_hole_is_seen() -> None:
    """The canary: each part that is missing is named."""
    whole = "Put it.\n\nArgs:\n    nbytes: bytes.\n\nReturns:\n    It.\n\n"
    whole += "Raises:\n    NotFound: it is not there.\n\nExamples:\n    >>> 1\n    1\n"
    assert faults(whole, ["nbytes"], True, True) == []
    assert faults(None, [], False, False) == ["docstring"]
    assert len(faults(whole, ["nbytes", "name"], True, True)) == 1
    assert faults(whole.replace("Returns", "Gives"), ["nbytes"], True, True) == ["Returns"]
    assert faults(whole.replace("Raises", "Fails"), ["nbytes"], True, True) == ["Raises"]
    assert faults(whole.replace(">>>", ">>"), ["nbytes"], True, True) == ["an example"]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[farrow.Client]:
    """A client of node "a", the only one of its cluster."""
    made: list[Node] = []

    def make(*flags: str) -> Node:
        made.append(Node(tmp_path_factory.mktemp("node"), *flags))
        return made[-1]

    try:
        yield Cluster(make, 1).client("a")
    finally:
        for node in made:
            node.close()


def examples_of(name: str) -> doctest.DocTest:
    names = {"farrow": farrow, "pa": pa, "np": np}
    text = PUBLIC[name].__doc__ or ""
    return doctest.DocTestParser().get_doctest(text, names, name, str(STUB), 0)


WITH_EXAMPLES = [name for name in PUBLIC if examples_of(name).examples]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_run(
    name: str, one: farrow.Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FARROW_SOCKET", one.address)
    monkeypatch.chdir(tmp_path)
    test = examples_of(name)
    test.globs["client"] = one
    told: list[str] = []
    options = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
    runner = doctest.DocTestRunner(verbose=False, optionflags=options)
    runner.run(test, out=told.append)
    assert not told, "".join(told)

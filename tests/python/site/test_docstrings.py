"""``help()`` shows a whole docstring for each public name, and each example in one runs.

The texts of the extension lie in its stub.  ``help(farrow.Client)`` once said "see
`_native.pyi`", a file that users do not read.  All modules without an underscore are public.  Once
only the names of ``farrow`` itself were tested, and none of the graph features had an example.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import farrow
from conftest import Cluster, Node
from farrow import _native, aio, events, huge
from farrow.graph import GraphFeatures, cluster, compat, data, report

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[3]
STUB = Path(farrow.__file__).parent / "_native.pyi"
# Packages that are installed for tests of their own only.  The source of these modules is read.
WITHOUT_PACKAGE = {"farrow.ray": "ray", "farrow.spark": "pyspark"}
CLASSES = [farrow.Client, farrow.HugeTable, farrow.ObjectRef, farrow.Writer, events.Subscription]
CLASSES += [aio.AsyncClient, GraphFeatures, compat.GraphFeaturePreprocessor, cluster.ClusterGraph]
CLASSES += [data.Accounts, data.Transactions, report.Distributions]
# They use what is in memory of their own process only.
CANNOT_FAIL = {
    "Client.close",
    "ObjectRef.hex",
    "aio.AsyncClient.close",
    "backup.Entry.files",
    "compat.plasma.ObjectID.binary",
    "compat.plasma.ObjectID.from_random",
    "compat.plasma.PlasmaClient.disconnect",
    "dashboard.Dashboard.close",
    "datafusion.detach",
    "duckdb.detach",
    "events.Subscription.close",
    "farrow_sql.worker.Supervisor.stop",
    "flight.FlightSqlServer.close",
    "graph.GraphFeatures.close",
    "graph.cluster.ClusterGraph.addresses",
    "graph.compat.GraphFeaturePreprocessor.get_feature_names_out",
    "graph.compat.GraphFeaturePreprocessor.get_params",
    "graph.data.Transactions.matrix",
    "graph.report.Distributions.blocks",
    "graph.report.block_of",
    "graph.report.page",
    "lab.Settings.quick",
    "sharing.uninstall",
}
# Interfaces of other packages, which document them.
INTERFACES = {
    "compat.plasma.PlasmaBuffer": "pyarrow.Buffer",
    "dask.SharingPlugin": "distributed.WorkerPlugin",
    "ray.FarrowDatasink": "ray.data.Datasink",
    "spark.FarrowDataSource": "pyspark.sql.datasource.DataSource",
}
SECTIONS = re.compile(r"^(Args|Attributes|Returns|Raises|Examples):$", re.M)


def modules() -> Iterator[ModuleType]:
    """All public modules, but for those whose package is not installed."""
    packages = [farrow]
    if importlib.util.find_spec("farrow_sql"):
        packages.append(importlib.import_module("farrow_sql"))
    for package in packages:
        yield package
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if any(part.startswith("_") for part in found.name.split(".")):
                continue
            needed = WITHOUT_PACKAGE.get(found.name)
            if needed is None or importlib.util.find_spec(needed):
                yield importlib.import_module(found.name)


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """Methods and properties of a class, and of its private base classes."""
    for base in cls.__mro__:
        if base is not cls and not (base.__module__.startswith("farrow") and "._" in str(base)):
            continue
        for name, member in vars(base).items():
            is_field = type(member).__name__ == "_tuplegetter" or inspect.ismemberdescriptor(member)
            if not name.startswith("_") and not is_field:
                is_bound = isinstance(member, (classmethod, staticmethod))
                yield name, getattr(cls, name) if is_bound else member


def public() -> Iterator[tuple[str, Any]]:
    """Name and value of everything public: names of all modules, and members of their classes."""
    seen: set[int] = set()
    for module in modules():
        prefix = f"{module.__name__}.".removeprefix("farrow.")
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            # A name of several modules is that of the shortest one.
            if name == "__version__" or inspect.ismodule(value) or id(value) in seen:
                continue
            seen.add(id(value))
            yield prefix + name, value
            if isinstance(value, type) and not issubclass(value, Exception):
                for one, member in members(value):
                    yield f"{prefix}{name}.{one}", member


def is_of_interface(name: str) -> bool:
    """Whether a name is that of a method that another package documents."""
    cls, _, method = name.rpartition(".")
    return cls in INTERFACES or (
        cls == "dataset.FarrowDataset" and hasattr(ds.UnionDataset, method)
    )


# In an order that is the same in each process: tests can be shared between several.
PUBLIC = dict(sorted(public(), key=lambda one: one[0]))
CHECKED = {name: value for name, value in PUBLIC.items() if not is_of_interface(name)}
FUNCTIONS = [name for name, value in CHECKED.items() if inspect.isroutine(value)]
PROPERTIES = [name for name, value in CHECKED.items() if inspect.isdatadescriptor(value)]
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


def faults_of(name: str) -> list[str]:
    value = PUBLIC[name]
    if not inspect.isroutine(value):
        return faults(value.__doc__, [], False, False)
    parameters = [one for one in inspect.signature(value).parameters if one != "self"]
    return faults(value.__doc__, parameters, returning(name), name not in CANNOT_FAIL)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_a_whole_docstring(name: str) -> None:
    assert faults_of(name) == []


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_property_has_a_whole_docstring(name: str) -> None:
    assert faults_of(name) == []


@pytest.mark.parametrize("module", WITHOUT_PACKAGE)
def test_a_module_of_another_package_has_whole_docstrings(module: str) -> None:
    """By its source: the packages are not installed where most tests run."""
    source = Path(farrow.__file__).parent / f"{module.partition('.')[2]}.py"
    tree = ast.parse(source.read_text())
    names = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    found = [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    found = [node for node in found if node.name in names]
    assert found
    lacking = {}
    for node in found:
        text = ast.get_docstring(node)
        if isinstance(node, ast.ClassDef):
            lacking[node.name] = [] if text else ["docstring"]
            continue
        given = node.args
        parameters = [one.arg for one in [*given.posonlyargs, *given.args, *given.kwonlyargs]]
        returns = ast.unparse(node.returns or ast.Constant(None)) != "None"
        # Examples of these packages run on the pages of the documentation.
        lacks = faults(text, parameters, returns, True)
        lacking[node.name] = [one for one in lacks if one != "an example"]
    assert {name: lacks for name, lacks in lacking.items() if lacks} == {}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_class_has_a_whole_docstring(cls: type) -> None:
    assert cls.__doc__ is not None
    parameters: list[str] = []
    if "Args" in sections(cls.__doc__):
        parameters = list(inspect.signature(cls).parameters)
    assert faults(cls.__doc__, parameters, False, False) == []


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


def test_an_error_is_one_of_farrow_and_has_a_row_in_the_reference() -> None:
    """``DaysLost`` was no ``FarrowError``, and four errors were not in the table."""
    page = (ROOT / "docs/reference/errors.md").read_text()
    for name in ERRORS:
        assert issubclass(PUBLIC[name], farrow.FarrowError)
        # Those of Plasma are subclasses with other names.
        if name != "FarrowError" and not name.startswith("compat."):
            assert f"| `{name}` |" in page


def test_a_public_module_is_in_the_reference() -> None:
    pages = [(ROOT / f"docs/reference/{name}.md").read_text() for name in ("python", "errors")]
    shown = re.findall(r"^::: (\S+)$", "\n".join(pages), re.M)
    for module in modules():
        if module is farrow or not hasattr(module, "__all__"):
            continue
        expected = {module.__name__}
        for name in module.__all__:
            owner = getattr(getattr(module, name), "__module__", module.__name__)
            expected.update((f"{module.__name__}.{name}", f"{owner}.{name}"))
        assert expected & set(shown), module.__name__


@pytest.mark.parametrize("cls", [farrow.NodeInfo, huge.Partition], ids=lambda cls: cls.__name__)
def test_a_tuple_describes_its_fields(cls: Any) -> None:
    described = re.findall(r"^    (\w+): \S", sections(cls.__doc__)["Attributes"], re.M)
    assert described == list(cls._fields)


def test_nothing_public_lacks_a_docstring() -> None:
    things = {n: v for n, v in PUBLIC.items() if isinstance(v, type) or callable(v)}
    assert len(things) > 200
    assert [name for name, value in things.items() if not value.__doc__] == []


@pytest.mark.parametrize("name", [*FUNCTIONS, *PROPERTIES, "Client", "Writer", "ObjectRef"])
def test_help_points_to_no_file(name: str) -> None:
    assert "_native.pyi" not in (inspect.getdoc(PUBLIC[name]) or "")


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
    reported: list[str] = []
    options = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
    runner = doctest.DocTestRunner(verbose=False, optionflags=options)
    runner.run(test, out=reported.append)
    assert not reported, "".join(reported)

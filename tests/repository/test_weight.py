"""The package gets no heavier: each figure has a limit. `python tests/repository/test_weight.py` prints all of them."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "fedhca2"
LIMITS = {
    "lines": 32_760,  # goal: 27,000
    "modules": 180,
    "module constants": 250,
    "imports inside functions": 60,
    "private names of torch": 8,
    "broad excepts": 15,
    "class names that exist twice": 0,
    "modules with one importer": 25,
    "95th percentile of function lines": 22,
    "lines of tests": 27_440,  # goal: 23,000
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def trees() -> dict[str, ast.Module]:
    """Every module of the package by its dotted name."""
    modules = {}
    for file in sorted(SOURCE.rglob("*.py")):
        name = ".".join(file.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
        modules[name] = ast.parse(file.read_text("utf-8"))
    return modules


def nodes() -> Iterator[ast.AST]:
    return (node for tree in trees().values() for node in ast.walk(tree))


def lines(folder: Path) -> int:
    return sum(len(file.read_text("utf-8").splitlines()) for file in folder.rglob("*.py"))


def module_constants() -> int:
    """Assignments to NAMES_IN_CAPITALS at module level."""
    statements = [statement for tree in trees().values() for statement in tree.body]
    targets = [statement.targets for statement in statements if isinstance(statement, ast.Assign)]
    targets += [[statement.target] for statement in statements if isinstance(statement, ast.AnnAssign)]
    return sum(any(re.fullmatch("_?[A-Z][A-Z0-9_]+", ast.unparse(name)) for name in names) for names in targets)


def inner_imports() -> int:
    imports = {
        id(inner)
        for node in nodes()
        if isinstance(node, FUNCTIONS)
        for inner in ast.walk(node)
        if isinstance(inner, ast.Import | ast.ImportFrom)
    }
    return len(imports)


def private_torch_names() -> set[str]:
    """What the package uses of torch that torch does not publish."""
    chains = {ast.unparse(node) for node in nodes() if isinstance(node, ast.Attribute)}
    chains |= {
        f"{node.module}.{alias.name}" for node in nodes() if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    return {match[0] for chain in chains if (match := re.match(r"torch(?:\.\w+)*?\._[a-z]\w*", chain))}


def broad_excepts() -> int:
    broad = (None, "Exception", "BaseException")
    handlers = [node for node in nodes() if isinstance(node, ast.ExceptHandler)]
    return sum((handler.type and ast.unparse(handler.type)) in broad for handler in handlers)


def repeated_classes() -> set[str]:
    names = Counter(node.name for node in nodes() if isinstance(node, ast.ClassDef))
    return {name for name, count in names.items() if count > 1}


def imported_by() -> dict[str, set[str]]:
    """The modules that import each module, also through their package."""
    importers: dict[str, set[str]] = {name: set() for name in trees()}
    for importer, tree in trees().items():
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            for name in set(names) & importers.keys() - {importer}:
                importers[name].add(importer)
    return importers


def single_importers() -> dict[str, str]:
    """Modules that only one other module imports; packages do not count."""
    packages = {name.rpartition(".")[0] for name in trees()}
    return {name: next(iter(by)) for name, by in imported_by().items() if len(by) == 1 and name not in packages}


def function_lines() -> int:
    """The 95th percentile of the lengths of functions, without their docstrings."""
    lengths = []
    for node in nodes():
        if isinstance(node, FUNCTIONS):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lengths += [(body[-1].end_lineno or 0) - body[0].lineno + 1] if body else []
    return sorted(lengths)[int(0.95 * len(lengths))]


def figures() -> dict[str, int]:
    return {
        "lines": lines(SOURCE),
        "modules": len(trees()),
        "module constants": module_constants(),
        "imports inside functions": inner_imports(),
        "private names of torch": len(private_torch_names()),
        "broad excepts": broad_excepts(),
        "class names that exist twice": len(repeated_classes()),
        "modules with one importer": len(single_importers()),
        "95th percentile of function lines": function_lines(),
        "lines of tests": lines(ROOT / "tests"),
    }


@pytest.mark.parametrize("figure", LIMITS)
def test_the_package_gets_no_heavier(figure):
    assert figures()[figure] <= LIMITS[figure]


if __name__ == "__main__":
    for figure, value in figures().items():
        print(f"{figure:34} {value:7,}  limit {LIMITS[figure]:7,}")
    print(*sorted(private_torch_names()), *sorted(repeated_classes()), sep="\n")
    print(*(f"{name} <- {by}" for name, by in sorted(single_importers().items())), sep="\n")

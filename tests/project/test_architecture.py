"""Imports point downward, folders and files stay small, and style rules hold."""

import ast
import itertools
import re
import statistics
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from trainer.config.cli_flags import config_flags
from trainer.config.resolve import find_optimizer
from trainer.config.schedules import SCHEDULES
from trainer.core.registry import discover
from trainer.core.run_config import Choice, RunConfig
from trainer.core.specs import ModelFamily, Optimization, OptimizerSpec

ROOT = Path(__file__).resolve().parents[2]

# A package imports only packages of lower layers. `trainer` stands for the modules directly in
# that folder; they are the entry points, so they come last.
LAYERS = {
    "webui.cli": 8,
    "app": 7,
    "trainer": 7,
    "webui": 6,
    "trainer.commands": 6,
    "trainer.inference": 5,
    "trainer.profiling": 5,
    "trainer.worker": 5,
    "trainer.launchers": 4,
    "trainer.optimizations": 4,
    "trainer.race": 4,
    "trainer.training": 4,
    "trainer.callbacks": 3,
    "trainer.models": 3,
    "trainer.checkpoints": 3,
    "trainer.config": 2,
    "trainer.data": 2,
    "trainer.optimizers": 2,
    "trainer.runs": 2,
    "trainer.state": 2,
    "trainer.safe_unpickle": 2,
    "trainer.core": 1,
}

# The page starts child processes that train; it never imports what trains. Registries load models,
# optimizers and optimizations by name.
CLOSED_TO_WEBUI = (
    "trainer.checkpoints", "trainer.commands", "trainer.core.train_state", "trainer.launchers",
    "trainer.models", "trainer.optimizations", "trainer.optimizers",
    "trainer.profiling.benchmark", "trainer.profiling.lr_finder",
    "trainer.profiling.memory_estimate", "trainer.safe_unpickle", "trainer.state",
    "trainer.training", "trainer.worker",
)  # fmt: skip

ALWAYS_INSTALLED = {
    "filelock", "numpy", "pandas", "psutil", "safetensors", "scipy", "soundfile", "torch",
    "torchaudio",
}  # fmt: skip
"""What the trainer may import at startup; everything else is imported where it is needed."""

BLOCKED = ("gradio", "matplotlib", "playwright", "prodigyopt", "pynvml", "schedulefree")
MAX_MODULES = 14
"""Modules per folder, `__init__.py` not counted; chosen by hand so that `ls` fits on one screen."""
REGISTRIES = {
    "trainer/commands", "trainer/models", "trainer/optimizers", "trainer/optimizations",
}  # fmt: skip
"""Folders where each module is one entry; they may hold any number."""
ENTRY_POINTS = {"__init__.py", "__main__.py", "train_gpt.py"}
"""The only modules directly in trainer/; `trainer.train_gpt` is a public import."""
LONG_FUNCTIONS: set[str] = set()
"""Functions, as `module.function`, that may exceed 60 lines; at most five."""
LONG_SCRIPT_FUNCTIONS: set[str] = set()
"""JavaScript functions, as `file:function`, that may exceed 60 lines; at most five."""

SPEC_OF = {
    "trainer/models": "ModelFamily",
    "trainer/optimizers": "OptimizerSpec",
    "trainer/optimizations": "Optimization",
}
SHAPE = re.compile(r"\([^()]*\b(B|T|T_text|T_mel|T_wav|M|D|K|V)\b[^()]*\)|\bscalars?\b|any shape")
LOCAL_PATH = re.compile(r"(?<![\w.])/(work|workspace|root|mnt|tmp/\w)/")
"""Absolute paths that exist only on the machine of whoever wrote them."""
SCRIPT_FUNCTION = re.compile(
    r"(?P<indent>[ ]*)(?:export )?(?:(?:async )?function (?P<name>\w+)"
    r"|(?:const |let )(?P<bound>[\w.]+) = (?:async )?(?:function|\([^)]*\) =>|\w+ =>).*\{$"
    r"|(?:async )?(?P<method>(?!if|for|while|switch|catch)\w+)\([^)]*\) \{$)"
)
"""The first line of a function, a function bound to a name, or a method."""
_CLOSED = tuple(f"{name}." for name in CLOSED_TO_WEBUI)

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One of our source files."""

    name: str
    path: Path
    text: str
    tree: ast.Module


@cache
def _modules() -> dict[str, Module]:
    """Return our modules by dotted name."""
    paths = [ROOT / "app.py", *ROOT.glob("trainer/**/*.py"), *ROOT.glob("webui/**/*.py")]
    modules = {}
    for path in sorted(paths):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        text = path.read_text(encoding="utf-8")
        modules[name] = Module(name, path, text, ast.parse(text))
    return modules


def _package(name: str) -> str:
    """Return the row of the layer table that a module belongs to."""
    first_two = ".".join(name.split(".")[:2])
    return first_two if first_two in LAYERS else name.split(".")[0]


def _is_package(name: str) -> bool:
    return _modules()[name].path.name == "__init__.py"


@cache
def _split_folders() -> frozenset[str]:
    """Return the packages that hold further packages."""
    packages = [name for name in _modules() if _is_package(name)]
    return frozenset(name.rpartition(".")[0] for name in packages if "." in name)


def _folder(name: str) -> str:
    """Return the folder of a module; one that lies beside folders counts by itself.

    The `__init__.py` of a package imports what it offers, so it counts by itself too.
    """
    parent = name.rpartition(".")[0]
    return name if _is_package(name) or parent in _split_folders() else parent or name


def _cyclic(imports: Mapping[str, set[str]]) -> list[str]:
    """Return the nodes that are left after all without open imports were taken away."""
    left = dict(imports)
    while free := {name for name, targets in left.items() if not targets & left.keys()}:
        left = {name: targets for name, targets in left.items() if name not in free}
    return sorted(left)


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes except those that only the type checker sees."""
    for child in ast.iter_child_nodes(tree):
        is_for_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if not is_for_types:
            yield child
            yield from _nodes(child)


def _imported(tree: ast.AST) -> list[str]:
    """Return the dotted names that a tree imports, including inside functions."""
    names = []
    for node in _nodes(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # `from package import module` names the module, `from module import thing` does not.
            source = node.module or ""
            joined = [f"{source}.{alias.name}" for alias in node.names]
            names += [name if name in _modules() else source for name in joined]
    return names


@cache
def _our_imports() -> dict[str, set[str]]:
    """Return which of our modules each module imports."""
    return {
        name: {target for target in _imported(module.tree) if target in _modules()}
        for name, module in _modules().items()
    }


def _functions(*packages: str) -> list[tuple[str, Function]]:
    """Return the functions of top-level packages with their dotted names."""
    return [
        (f"{module.name}.{node.name}", node)
        for module in _modules().values()
        if module.name.split(".")[0] in packages
        for node in ast.walk(module.tree)
        if isinstance(node, Function)
    ]


def _arguments(function: Function) -> list[ast.arg]:
    """Return the named arguments of a function, without self and cls."""
    every = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return [argument for argument in every if argument.arg not in ("self", "cls")]


def _length(node: Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _has_tensors(function: Function) -> bool:
    """Return whether a function takes or returns tensors; a dict of tensors has no one shape."""
    every = [argument.annotation for argument in _arguments(function)] + [function.returns]
    text = " ".join(ast.unparse(annotation) for annotation in every if annotation)
    return re.search(r"\bTensor\b", text.replace("dict[str, Tensor]", "")) is not None


# Layers


def test_every_package_has_a_layer() -> None:
    packages = {_package(name) for name in _modules()}
    beside = {
        name
        for name in _modules()
        if name.startswith("trainer.") and _is_package(name) and name.count(".") == 1
    }

    assert packages | beside == set(LAYERS)


def test_imports_point_to_lower_layers() -> None:
    upward = [
        f"{importer} -> {target}"
        for importer, targets in _our_imports().items()
        for target in sorted(targets)
        if _package(importer) != _package(target)
        and LAYERS[_package(importer)] <= LAYERS[_package(target)]
    ]

    assert upward == []


def test_the_page_imports_nothing_that_trains() -> None:
    closed = [
        f"{importer} -> {target}"
        for importer, targets in _our_imports().items()
        for target in sorted(targets)
        if _package(importer) == "webui" and f"{target}.".startswith(_CLOSED)
    ]

    assert closed == []


def test_no_modules_import_each_other() -> None:
    assert _cyclic(_our_imports()) == []


def test_no_folders_import_each_other() -> None:
    folders: defaultdict[str, set[str]] = defaultdict(set)
    for importer, targets in _our_imports().items():
        folders[_folder(importer)] |= {_folder(target) for target in targets}

    assert _cyclic({name: targets - {name} for name, targets in folders.items()}) == []


def test_folders_hold_few_modules() -> None:
    paths = [module.path for module in _modules().values()]
    counts = Counter(
        path.parent.relative_to(ROOT).as_posix() for path in paths if path.name != "__init__.py"
    )

    too_full = {folder for folder, count in counts.items() if count > MAX_MODULES}

    assert too_full <= REGISTRIES
    assert {path.name for path in (ROOT / "trainer").glob("*.py")} == ENTRY_POINTS


@pytest.mark.parametrize(("package", "banned"), [("trainer", "gradio"), ("webui", "torch")])
def test_the_trainer_never_imports_gradio_nor_the_page_torch(package: str, banned: str) -> None:
    importers = [
        module.name
        for module in _modules().values()
        if module.name.split(".")[0] == package
        and banned in {name.split(".")[0] for name in _imported(module.tree)}
    ]

    assert importers == []


def test_optional_packages_are_imported_only_where_they_are_needed() -> None:
    top_level = {
        (module.name, name.split(".")[0])
        for module in _modules().values()
        if module.name.split(".")[0] == "trainer"
        for statement in module.tree.body
        if isinstance(statement, ast.Import | ast.ImportFrom)
        for name in _imported(ast.Module([statement], []))
    }

    optional = {
        f"{module}: {package}"
        for module, package in top_level
        if package not in sys.stdlib_module_names | ALWAYS_INSTALLED | {"trainer"}
    }

    assert optional == set()


@pytest.mark.fault("E11", "F13")
def test_the_trainer_starts_without_optional_packages() -> None:
    program = f"""
import importlib, pkgutil, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {BLOCKED}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refuse())
import trainer
from trainer.commands.main import main
for module in pkgutil.walk_packages(trainer.__path__, "trainer."):
    importlib.import_module(module.name)
assert main(["--help"]) == 0
main(["train", "--optimizer", "prodigy", "--help"])
"""

    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stderr
    assert "--gradient-checkpointing" in result.stdout
    assert "--d-coef" in result.stdout


# Style


def test_files_are_short(record_property: Callable[[str, object], None]) -> None:
    lengths = {name: len(module.text.splitlines()) for name, module in _modules().items()}

    too_long = {
        name: length
        for name, length in lengths.items()
        if length > (600 if name.startswith("trainer.models") else 500)
    }

    record_property("median_file_length", statistics.median(lengths.values()))
    assert too_long == {}


def test_functions_are_short() -> None:
    too_long = {name for name, node in _functions("trainer", "webui", "app") if _length(node) > 60}

    assert too_long == LONG_FUNCTIONS
    assert len(LONG_FUNCTIONS) <= 5


def _scripts() -> dict[str, list[str]]:
    """Return the lines of our JavaScript files by their path below webui/static/js."""
    folder = ROOT / "webui" / "static" / "js"
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8").splitlines()
        for path in sorted(folder.rglob("*.js"))
    }


def _script_functions(lines: list[str]) -> Iterator[tuple[str, int]]:
    """Yield (name, number of lines) of functions; one ends at a brace with its own indentation."""
    for first, line in enumerate(lines):
        match = SCRIPT_FUNCTION.match(line)
        if match is None or line.rstrip().endswith("}"):
            continue
        end = re.compile(match["indent"] + r"\}")
        last = next((i for i in range(first + 1, len(lines)) if end.match(lines[i])), first)
        yield match["name"] or match["bound"] or match["method"], last - first + 1


def test_scripts_and_their_functions_are_short() -> None:
    scripts = _scripts()
    functions = {
        f"{path}:{name}": length
        for path, lines in scripts.items()
        for name, length in _script_functions(lines)
    }

    assert len(functions) > len(scripts) > 0
    assert {path: len(lines) for path, lines in scripts.items() if len(lines) > 300} == {}
    assert {name for name, length in functions.items() if length > 60} == LONG_SCRIPT_FUNCTIONS
    assert len(LONG_SCRIPT_FUNCTIONS) <= 5


def test_functions_take_few_parameters() -> None:
    too_many = {
        name: len(_arguments(node))
        for name, node in _functions("trainer", "webui", "app")
        if len(_arguments(node)) > 8
    }

    assert too_many == {}


def test_every_function_is_typed() -> None:
    untyped = [
        name
        for name, node in _functions("trainer", "webui", "app")
        if node.returns is None
        or any(
            argument is not None and argument.annotation is None
            for argument in [*_arguments(node), node.args.vararg, node.args.kwarg]
        )
    ]

    assert untyped == []


def test_every_module_has_a_docstring() -> None:
    missing = [name for name, module in _modules().items() if not ast.get_docstring(module.tree)]

    assert missing == []


def test_functions_of_tensors_state_their_shapes() -> None:
    stated, unstated = [], []
    for module in _modules().values():
        if not module.name.startswith("trainer.models"):
            continue
        for owner in ast.walk(module.tree):
            of_class = ast.get_docstring(owner) if isinstance(owner, ast.ClassDef) else ""
            for node in ast.iter_child_nodes(owner):
                if isinstance(node, Function) and _has_tensors(node):
                    text = f"{ast.get_docstring(node)} {of_class}"
                    (stated if SHAPE.search(text) else unstated).append(
                        f"{module.name}.{node.name}"
                    )

    assert stated
    assert len(stated) >= 0.9 * (len(stated) + len(unstated)), sorted(set(unstated))


def test_at_most_two_handlers_catch_every_exception() -> None:
    broad = [
        f"{module.name}:{node.lineno}"
        for module in _modules().values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or re.search(r"\b(Base)?Exception\b", ast.unparse(node.type)))
    ]

    assert len(broad) <= 2, broad


def test_only_the_command_line_prints() -> None:
    printing = [
        f"{module.name}:{node.lineno}"
        for module in _modules().values()
        if module.name not in ("app", "trainer.commands.main", "trainer.__main__")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print"
    ]

    assert printing == []


@pytest.mark.fault("F14")
def test_no_global_statement_and_no_shell() -> None:
    found = [
        f"{module.name}:{node.lineno}"
        for module in _modules().values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Global)
        or (isinstance(node, ast.keyword) and ast.unparse(node) == "shell=True")
    ]

    assert found == []


def test_the_loop_fits_on_a_page() -> None:
    lengths = {name: _length(node) for name, node in _functions("trainer")}

    assert (
        lengths["trainer.training.loop.train"] + lengths["trainer.training.loop.train_step"] <= 80
    )


@pytest.mark.parametrize(("folder", "kind"), SPEC_OF.items())
def test_the_last_statement_of_an_entry_is_its_spec(folder: str, kind: str) -> None:
    children = [path for path in sorted((ROOT / folder).iterdir()) if path.name[0] not in "_."]
    entries = [path / "__init__.py" if path.is_dir() else path for path in children]

    last = {
        str(path): ast.parse(path.read_text(encoding="utf-8")).body[-1]
        for path in entries
        if path.is_file()
    }

    assert last
    for path, statement in last.items():
        assert ast.unparse(statement).split(" = ", 1)[1].startswith(f"{kind}("), path


def test_command_line_flags_are_unique() -> None:
    families = discover("trainer.models", ModelFamily)
    optimizers = discover("trainer.optimizers", OptimizerSpec)
    optimizations = {
        name.replace("_", "-") for name in discover("trainer.optimizations", Optimization)
    }

    for family, optimizer, schedule in itertools.product(families, optimizers, SCHEDULES):
        if schedule not in (find_optimizer(optimizer).schedules or SCHEDULES):
            continue
        config = RunConfig(
            family=Choice(family), optimizer=Choice(optimizer), schedule=Choice(schedule)
        )
        flags = [flag.flag for flag in config_flags(config)]
        assert len(flags) == len(set(flags)), (family, optimizer, schedule)
        assert not optimizations & set(flags), (family, optimizer, schedule)


def test_no_file_contains_a_local_path() -> None:
    folders = ("trainer", "webui", "tests", "assets", "benchmarks", "docs", "examples", ".ci")
    kinds = {".py", ".md", ".txt", ".toml", ".json", ".csv", ".css", ".js", ".html", ".sh", ""}
    nested = itertools.chain.from_iterable((ROOT / folder).rglob("*") for folder in folders)
    texts = [path for path in (*ROOT.glob("*"), *nested) if path.is_file() and path.suffix in kinds]

    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in texts
        for match in LOCAL_PATH.finditer(path.read_text(encoding="utf-8", errors="ignore"))
    ]

    assert (ROOT / "trainer" / "training" / "loop.py") in texts
    assert found == []

"""The house stands: imports point downward, files and functions stay small, nothing is hidden."""

import ast
import itertools
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
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

ROOT = Path(__file__).parent.parent.parent

# A room imports rooms of lower floors only; the decimals order the few rooms of one floor that
# build on each other. A room is a module, or a package with all its modules.
FLOORS = {
    "app": 7.0,
    "webui": 6.0,
    "trainer.__main__": 5.4,
    "trainer.commands.main": 5.3,
    "trainer": 5.2,
    "trainer.commands.estimate": 5.15,
    "trainer.launchers": 5.15,
    "trainer.commands.event_text": 5.0,
    "trainer.profiling.benchmark": 5.15,
    "trainer.race": 5.15,
    "trainer.profiling.lr_finder": 5.15,
    "trainer.config.cli_flags": 5.1,
    "trainer.worker.training_process": 5.1,
    "trainer.worker.event_writer": 5.05,
    "trainer.inference.synthesis": 5.1,
    "trainer.train_gpt": 5.2,
    "trainer.inference.speech_metrics": 5.0,
    "trainer.commands.cut": 5.2,
    "trainer.inference.transcription": 5.15,
    "trainer.runs.run_store": 5.05,
    "trainer.runs.trash": 5.02,
    "trainer.runs.queue": 5.0,
    "trainer.runs.run": 5.0,
    "trainer.training.loop": 4.1,
    "trainer.callbacks.instability": 4.0,
    "trainer.callbacks.alerts": 4.0,
    "trainer.checkpoints.async_writer": 4.0,
    "trainer.training.metrics": 4.0,
    "trainer.training.nan_recovery": 3.95,
    "trainer.training.oom_recovery": 3.15,
    "trainer.training.oom_diagnosis": 3.1,
    "trainer.callbacks.replay_check": 4.0,
    "trainer.training.optimizer_step": 3.0,
    "trainer.checkpoints.compatibility": 3.0,
    "trainer.training.triggers": 4.0,
    "trainer.training.run_length": 3.9,
    "trainer.training.preflight": 3.5,
    "trainer.profiling.memory_estimate": 3.3,
    "trainer.training.assemble": 3.2,
    "trainer.checkpoints.checkpoint": 3.1,
    "trainer.data.features.dataset": 3.0,
    "trainer.config.resolve": 3.0,
    "trainer.training.evaluate": 3.0,
    "trainer.profiling.recommendations": 3.05,
    "trainer.data.text.charset_coverage": 3.0,
    "trainer.inference.listening_test": 1.0,
    "trainer.config.presets": 3.0,
    "trainer.profiling.synthetic_batches": 3.1,
    "trainer.profiling.measurements": 3.0,
    "trainer.core.ema": 1.1,
    "trainer.profiling.cuda_allocator": 2.2,
    "trainer.profiling.memory_tracker": 2.1,
    "trainer.training.garbage_collection": 2.1,
    "trainer.checkpoints.staging": 2.1,
    "trainer.callbacks.step_timer": 2.1,
    "trainer.training.distributed": 2.1,
    "trainer.models": 2.1,
    "trainer.optimizations": 2.15,
    "trainer.optimizers": 2.1,
    "trainer.core.probe": 2.05,
    "trainer.config.schedules": 2.1,
    "trainer.runs.metric_store": 2.1,
    "trainer.data": 2.0,
    "trainer.safe_unpickle": 2.0,
    "trainer.core.train_state": 1.2,
    "trainer.core.specs": 1.1,
    "trainer.core.run_config": 1.0,
    "trainer.core.types": 1.0,
    "trainer.core.device": 1.0,
    "trainer.core.events": 1.0,
    "trainer.runs.heartbeat": 1.05,
    "trainer.worker.log_rotation": 1.0,
    "trainer.runs.locks": 1.0,
    "trainer.runs.restart_policy": 1.05,
    "trainer.worker.supervisor": 1.1,
    "trainer.runs.control": 1.0,
    "trainer.core.registry": 0.2,
    "trainer.core.options": 0.1,
    "trainer.core.atomic_io": 0.0,
    "trainer.core.errors": 0.0,
    "trainer.commands.package_conflict": 0.0,
    "trainer.core.paths": 0.0,
    "trainer.core.version": 0.0,
    "trainer.commands.usage": 0.1,
}

# Rooms that may import less than what lies below them.
ONLY = {
    # It starts a process that trains; it must not train, nor load what trains.
    "trainer.runs.run": {
        "config", "device", "durable", "errors", "events", "heartbeat", "ownership", "requests",
        "paths", "restarts", "series", "version",
    },
    "trainer.runs.run_store": {
        "config", "errors", "events", "queue", "restarts", "runs", "series", "trash",
    },
    # Of floor 5 only what reads and starts runs and races, and the flags, to show a run as a
    # command.
    "webui": {
        "catalog", "config", "data.archives", "data.findings", "data.folder", "data.ledger",
        "data.locate", "data.recordings", "data.slicing",
        "data.manifest", "data.peek", "data.quality", "data.rewrite", "data.types", "device",
        "durable", "entries", "errors", "events", "advice", "flags", "guard", "library",
        "measurements",
        "race.choices", "race.plan", "race.queue", "race.view", "options", "presets", "runs",
        "schedules", "series", "specs", "votes", "paths", "version",
        # The `timbre` command passes on what isn't for the page.
        "__main__", "cli", "usage",
    },
}  # fmt: skip

ALWAYS_INSTALLED = {
    "filelock", "numpy", "pandas", "psutil", "safetensors", "scipy", "soundfile", "torch",
    "torchaudio",
}  # fmt: skip
"""What the trainer may import when it starts; everything else is imported where it is needed."""

BLOCKED = ("gradio", "matplotlib", "playwright", "prodigyopt", "pynvml", "schedulefree")
LONG_FUNCTIONS: set[str] = set()
"""At most five functions, as `module.function`, that may be longer than 60 lines."""

CATALOGS = {
    "trainer/models": "ModelFamily",
    "trainer/optimizers": "OptimizerSpec",
    "trainer/optimizations": "Optimization",
}
SHAPE = re.compile(r"\([^()]*\b(B|T|T_text|T_mel|T_wav|M|D|K|V)\b[^()]*\)|\bscalars?\b|any shape")
ELSEWHERE = re.compile(r"(?<![\w.])/(work|workspace|root|mnt|tmp/\w)/")
"""Absolute paths as they exist where someone works, and nowhere else."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """A source file of ours."""

    name: str
    path: Path
    text: str
    tree: ast.Module


@cache
def _modules() -> dict[str, Module]:
    """Return every module of the product by its dotted name."""
    paths = [ROOT / "app.py", *ROOT.glob("trainer/**/*.py"), *ROOT.glob("webui/**/*.py")]
    modules = {}
    for path in sorted(paths):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        text = path.read_text(encoding="utf-8")
        modules[name] = Module(name, path, text, ast.parse(text))
    return modules


def _room(module_name: str) -> str:
    """Return the room that holds a module: its longest prefix in the table of floors."""
    parts = module_name.split(".")
    prefixes = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    rooms = [prefix for prefix in prefixes if prefix in FLOORS]
    is_housed = rooms and (rooms[0] != "trainer" or module_name == "trainer")
    return rooms[0] if is_housed else ""


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes but those that only the type checker sees."""
    for child in ast.iter_child_nodes(tree):
        is_for_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if not is_for_types:
            yield child
            yield from _nodes(child)


def _imported(tree: ast.AST) -> list[str]:
    """Return the dotted names that a tree imports, also inside functions."""
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
def _house_imports() -> dict[str, set[str]]:
    """Return which modules of ours each module imports."""
    return {
        name: {target for target in _imported(module.tree) if target in _modules()}
        for name, module in _modules().items()
    }


def _functions(*packages: str) -> list[tuple[str, Function]]:
    """Return every function of packages with its dotted name."""
    return [
        (f"{module.name}.{node.name}", node)
        for module in _modules().values()
        if module.name.split(".")[0] in packages
        for node in ast.walk(module.tree)
        if isinstance(node, Function)
    ]


def _arguments(function: Function) -> list[ast.arg]:
    """Return the named arguments of a function without self and cls."""
    every = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return [argument for argument in every if argument.arg not in ("self", "cls")]


def _length(node: Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _has_tensors(function: Function) -> bool:
    """Whether a function takes or returns tensors; dicts of weights or losses have no one shape."""
    every = [argument.annotation for argument in _arguments(function)] + [function.returns]
    text = " ".join(ast.unparse(annotation) for annotation in every if annotation)
    return re.search(r"\bTensor\b", text.replace("dict[str, Tensor]", "")) is not None


# Floors


def test_every_module_has_a_floor() -> None:
    homeless = [name for name in _modules() if not _room(name)]

    assert homeless == [], "give each a floor in FLOORS"


def test_every_floor_has_a_module() -> None:
    rooms = {_room(name) for name in _modules()}

    assert set(FLOORS) - rooms == set()


def test_imports_point_downward() -> None:
    reversed_imports = [
        f"{importer} -> {target}"
        for importer, targets in _house_imports().items()
        for target in sorted(targets)
        if _room(importer) != _room(target) and FLOORS[_room(importer)] <= FLOORS[_room(target)]
    ]

    assert reversed_imports == []


@pytest.mark.parametrize("room", ONLY)
def test_some_rooms_know_only_a_few_others(room: str) -> None:
    strangers = [
        f"{importer} -> {target}"
        for importer, targets in _house_imports().items()
        for target in sorted(targets)
        if _room(importer) == room != _room(target)
        and target.removeprefix("trainer.") not in ONLY[room]
    ]

    assert strangers == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    left = dict(_house_imports())

    while free := {name for name, targets in left.items() if not targets & left.keys()}:
        left = {name: targets for name, targets in left.items() if name not in free}

    assert sorted(left) == []


@pytest.mark.parametrize(("package", "stranger"), [("trainer", "gradio"), ("webui", "torch")])
def test_the_trainer_has_never_heard_of_a_page_nor_the_page_of_tensors(
    package: str, stranger: str
) -> None:
    knowing = [
        module.name
        for module in _modules().values()
        if module.name.split(".")[0] == package
        and stranger in {name.split(".")[0] for name in _imported(module.tree)}
    ]

    assert knowing == []


def test_what_may_be_missing_is_imported_only_where_it_is_needed() -> None:
    first_words = {
        (module.name, name.split(".")[0])
        for module in _modules().values()
        if module.name.split(".")[0] == "trainer"
        for statement in module.tree.body
        if isinstance(statement, ast.Import | ast.ImportFrom)
        for name in _imported(ast.Module([statement], []))
    }

    foreign = {
        f"{module}: {word}"
        for module, word in first_words
        if word not in sys.stdlib_module_names | ALWAYS_INSTALLED | {"trainer"}
    }

    assert foreign == set()


@pytest.mark.fault("E11", "F13")
def test_the_trainer_starts_where_only_what_it_needs_is_installed() -> None:
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


def test_every_module_says_what_lives_in_it() -> None:
    silent = [name for name, module in _modules().items() if not ast.get_docstring(module.tree)]

    assert silent == []


def test_functions_of_tensors_state_their_shapes() -> None:
    stated, silent = [], []
    for module in _modules().values():
        if not module.name.startswith("trainer.models"):
            continue
        for owner in ast.walk(module.tree):
            of_class = ast.get_docstring(owner) if isinstance(owner, ast.ClassDef) else ""
            for node in ast.iter_child_nodes(owner):
                if isinstance(node, Function) and _has_tensors(node):
                    text = f"{ast.get_docstring(node)} {of_class}"
                    (stated if SHAPE.search(text) else silent).append(f"{module.name}.{node.name}")

    assert stated
    assert len(stated) >= 0.9 * (len(stated) + len(silent)), sorted(set(silent))


def test_a_broad_except_exists_twice_in_the_house() -> None:
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
def test_no_global_names_are_changed_and_no_shell_is_started() -> None:
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


@pytest.mark.parametrize(("folder", "kind"), CATALOGS.items())
def test_an_entry_ends_with_its_spec(folder: str, kind: str) -> None:
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


def test_flags_of_the_command_line_never_clash() -> None:
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


def test_no_text_names_a_path_of_one_machine() -> None:
    folders = ("trainer", "webui", "tests", "assets", ".ci")
    kinds = {".py", ".md", ".txt", ".toml", ".json", ".csv", ".css", ".js", ".html", ".sh", ""}
    nested = itertools.chain.from_iterable((ROOT / folder).rglob("*") for folder in folders)
    texts = [path for path in (*ROOT.glob("*"), *nested) if path.is_file() and path.suffix in kinds]

    naming = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in texts
        for match in ELSEWHERE.finditer(path.read_text(encoding="utf-8", errors="ignore"))
    ]

    assert (ROOT / "trainer" / "loop.py") in texts
    assert naming == []

"""Mutants of the code, drawn at random from those that cosmic-ray makes: each changes one expression."""

import ast
import difflib
import random
from collections import defaultdict
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

from tests.mutants.mutant import Mutant, functions_of

SEED = 20
SERVER, DEVICE = "fl_core/deployment/server", "clients/fedlm_client/fedlm_client"
# An area's number of mutants, and its files; a file belongs to the first area that names it.
AREAS: dict[str, tuple[int, tuple[str, ...]]] = {
    "aggregation": (
        18,
        (
            "fl_core/rounds/aggregation.py",
            "fl_core/exact_sums.py",
            "fl_core/rounds/cohorts.py",
            "fl_core/rounds/norm_bounds.py",
            "fl_core/privacy/noise/noised_sums.py",
            f"{SERVER}/reports/*_sum*.py",
            "fl_core/deployment/aggregators/partial_sums.py",
        ),
    ),
    "clipping": (18, ("fl_core/clipping/*.py",)),
    "compression": (16, ("fl_core/updates/*.py",)),
    "ledger": (
        14,
        (
            "fl_core/privacy/record/ledger.py",
            "fl_core/privacy/record/record_chain.py",
            "fl_core/privacy/promise/spending.py",
            "fl_core/privacy/record/participation_record.py",
            "fl_core/runs/data_budget.py",
        ),
    ),
    "releases": (
        12,
        ("fl_core/privacy/record/releases.py", "fl_core/runs/private_releases.py", "fl_core/runs/publishing.py"),
    ),
    "privacy": (30, ("fl_core/privacy/*.py",)),
    "driver": (
        14,
        (
            "fl_core/rounds/round_loop.py",
            "fl_core/runs/driver.py",
            "fl_core/runs/files/checkpoints.py",
            "fl_core/runs/federated_training.py",
            "fl_core/runs/run_folder.py",
            "fl_core/runs/endings.py",
        ),
    ),
    "protocol": (
        12,
        tuple(
            f"{room}/{name}.py"
            for room in ("fl_core/deployment/protocol", DEVICE)
            for name in ("artifacts", "errors", "training_program", "uploads")
        ),
    ),
    "handlers": (16, (f"{SERVER}/*.py", f"{SERVER}/reports/*.py")),
}
# Of each operator that is replaced, the ones that are put in its place: those that a slip of the hand would.
ARITHMETIC = (
    "Add_Sub Add_Mul Sub_Add Mul_Div Mul_Add Div_Mul FloorDiv_Div FloorDiv_Mul Mod_FloorDiv Pow_Mul "
    "RShift_LShift LShift_RShift BitOr_BitAnd BitAnd_BitOr BitXor_BitOr"
).split()
COMPARISONS = ("Eq_NotEq NotEq_Eq Lt_LtE Lt_Gt LtE_Lt LtE_GtE Gt_GtE Gt_Lt GtE_Gt GtE_LtE Is_IsNot IsNot_Is").split()
KINDS = {
    "number": ["NumberReplacer"],
    "arithmetic": [f"ReplaceBinaryOperator_{pair}" for pair in ARITHMETIC],
    "comparison": [f"ReplaceComparisonOperator_{pair}" for pair in COMPARISONS],
    "sign or not": ["ReplaceUnaryOperator_Delete_USub", "ReplaceUnaryOperator_Delete_Not"],
    "boolean": ["ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue"],
    "condition": ["AddNot"],
    "loop": ["ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ZeroIterationForLoop"],
    "exception": ["ExceptionReplacer"],
}
Place = tuple[str, int]  # an operator and the how manieth of its occurrences in a file


def draw_mutants(root: Path) -> list[Mutant]:
    """As many mutants of each area as it asks for, at most one of a function while there are others."""
    rng = random.Random(SEED)
    seen: set[Path] = set()
    mutants = []
    for area, (count, patterns) in AREAS.items():
        files = [
            file
            for room in ("fl_core", DEVICE)
            for file in sorted((root / room).rglob("*.py"))
            if file not in seen and any(fnmatch(str(file.relative_to(root)), pattern) for pattern in patterns)
        ]
        seen.update(files)
        mutants += _of_area(area, count, {str(file.relative_to(root)): file.read_text() for file in files}, rng)
    return mutants


def _of_area(area: str, count: int, sources: dict[str, str], rng: random.Random) -> list[Mutant]:
    places = {
        (path, function): kinds
        for path, source in sources.items()
        for function, kinds in _places_by_function(source).items()
    }
    drawn: list[Mutant] = []
    turns: list[tuple[str, str]] = []
    while len(drawn) < count:
        if not turns:
            turns = rng.sample(sorted(places), len(places))
        path, function = turns.pop()
        kinds = places[path, function]
        operator, occurrence = rng.choice(kinds[rng.choice(sorted(kinds))])
        mutant = _mutant(area, path, function, sources[path], (operator, occurrence))
        if mutant and mutant not in drawn:
            drawn.append(mutant)
    return drawn


def _places_by_function(source: str) -> dict[str, dict[str, list[Place]]]:
    tree = ast.parse(source)
    left_out, functions = _spans_left_out(tree), functions_of(tree)
    found: dict[str, dict[str, list[Place]]] = defaultdict(lambda: defaultdict(list))
    nodes = list(ast_nodes(get_ast(source)))
    for kind, operators in KINDS.items():
        for name in operators:
            operator = cosmic_ray.plugins.get_operator(f"core/{name}")()
            positions = [position for node in nodes for position in operator.mutation_positions(node)]
            for occurrence, (start, _) in enumerate(positions):
                if not any(first <= start <= last for first, last in left_out):
                    found[function_at(functions, start[0])][kind].append((name, occurrence))
    return found


def _spans_left_out(tree: ast.AST) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """What no test should tell apart: annotations, assertions, the words of errors and logs, `__repr__`."""
    return [
        ((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0))
        for node in _nodes_left_out(tree)
    ]


def _nodes_left_out(tree: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            yield node.annotation
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from node.decorator_list
            if isinstance(node, ast.FunctionDef) and node.returns:
                yield node.returns
            if node.name == "__repr__":
                yield node
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield node.exc
        elif isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Assert) or _is_for_types(node):
            yield node
        elif isinstance(node, ast.keyword) and node.arg in ("repr", "strict"):
            yield node.value
        elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith(("log", "warnings", "print")):
            yield node


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def function_at(functions: dict[str, tuple[int, int]], line: int) -> str:
    """The innermost function that has a line; "" for a line of the module itself."""
    around = [(last - first, name) for name, (first, last) in functions.items() if first <= line <= last]
    return min(around)[1] if around else ""


def _mutant(area: str, path: str, function: str, source: str, place: Place) -> Mutant | None:
    name, occurrence = place
    changed = mutate_code(source, cosmic_ray.plugins.get_operator(f"core/{name}")(), occurrence)
    # What is never raised, for cosmic-ray's exception, which other programs do not know.
    changed = changed.replace("CosmicRayTestingException", "StopAsyncIteration")
    old, new = source.splitlines(), changed.splitlines()
    blocks = [block for block in difflib.SequenceMatcher(None, old, new, False).get_opcodes() if block[0] != "equal"]
    if len(blocks) != 1:
        return None
    _, first, last, new_first, new_last = blocks[0]
    # cosmic-ray takes the stars of arguments for products.
    if not _is_code(changed) or (name.startswith("ReplaceBinary") and "def " in old[first]):
        return None
    return Mutant(area, path, function, first + 1, name, old[first:last], new[new_first:new_last])


def _is_code(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True

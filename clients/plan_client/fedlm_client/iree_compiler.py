"""Compiles programs with IREE for this machine's processor; imported in the process of `worker.py` alone."""

from iree.compiler import api, ir

from fedlm_client.errors import PlanError
from fedlm_client.manifest import Program
from fedlm_client.operations import check_operations, check_type

FLAGS = (
    "--iree-input-type=stablehlo",
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
)


def check(content: bytes, program: Program) -> None:
    """Refuse, with `PlanError`, a program that does more than compute, or has other shapes than the manifest says."""
    with ir.Context() as context:
        module = ir.Module.parse(content, context)
        names: list[str] = []
        types: list[str] = []

        def visit(operation: ir.Operation) -> ir.WalkResult:
            names.append(operation.name)
            if operation.name == "vhlo.func_v1" and '"main"' in str(operation.attributes["sym_name"]):
                types.append(str(operation.attributes["function_type"]))
            return ir.WalkResult.ADVANCE

        module.operation.walk(visit)
    check_operations(names)
    check_type("".join(types), program.inputs, program.outputs)


def compile_program(content: bytes, target: tuple[str, ...]) -> bytes:
    """Compile what `check` has found nothing wrong with into a module.

    Args:
      content: the program.
      target: the compiler's further flags, which say for which processor.

    Raises:
      PlanError: the compiler cannot.
    """
    session = api.Session()
    session.set_flags(*FLAGS, *target)
    source = api.Source.wrap_buffer(session, content)
    run = session.invocation()
    if not run.parse_source(source) or not run.execute():
        raise PlanError("IREE cannot compile the plan's program")
    output = api.Output.open_membuffer()
    run.output_vm_bytecode(output)
    return bytes(output.map_memory())

"""What commands that lead to others print about these."""

import sys

_USAGE_ERROR = 2


def answer_without_choice(
    argv: list[str], prog: str, kind: str, purpose: str, choices: dict[str, str], examples: str
) -> int | None:
    """Print help, or that there is no such sub-command, where the words do not begin with one.

    Args:
      argv: the words after `prog`.
      prog: the command, as it is typed.
      kind: what its sub-commands are called.
      purpose: a sentence about the command.
      choices: what each sub-command does.
      examples: lines that end the help.

    Returns:
      The exit status, or None where `argv[0]` is one of the choices.
    """
    if not argv or argv[0] in ("-h", "--help"):
        width = max(map(len, choices))
        lines = [f"usage: {prog} {kind.upper()} [OPTIONS]", "", purpose, "", f"{kind}s:"]
        lines += [f"  {name:{width}}  {text}" for name, text in choices.items()]
        print("\n".join([*lines, "", f"`{prog} {kind.upper()} --help` explains its options. {examples}"]))
        return 0 if argv else _USAGE_ERROR
    if argv[0] not in choices:
        print(f"{prog}: unknown {kind} {argv[0]!r}; choose from {', '.join(choices)}", file=sys.stderr)
        return _USAGE_ERROR
    return None

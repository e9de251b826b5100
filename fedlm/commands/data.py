"""`fedlm data`: import text into a token store, describe a store, count its tokens, and export it."""

from fedlm.commands import data_describe, data_export, data_import, data_relevance, data_sample
from fedlm.commands.sub_commands import run_choice


def main(argv: list[str]) -> int:
    """Run `fedlm data`."""
    choices = {
        "import": ("make a token store from a source of text", data_import.main),
        "describe": ("show what is in a token store", data_describe.main),
        "sample": ("show some clients' examples as text", data_sample.main),
        "relevance": ("count how often each token occurs, for models with re-attention", data_relevance.main),
        "export": ("write a token store in the form of another program", data_export.main),
    }
    purpose = "Text of many users, as token stores that training reads."
    return run_choice(argv, "fedlm data", "action", purpose, choices, _EXAMPLES)


_EXAMPLES = """To begin:

  fedlm data import stdlib --out runs/stdlib
  fedlm data describe runs/stdlib"""

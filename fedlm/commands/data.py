"""`fedlm data`: import text into a token store, describe a store, count its tokens, and export it."""

from fedlm.command_line.command import Group
from fedlm.commands import data_describe, data_export, data_import, data_relevance, data_sample

_EXAMPLES = """To begin:

  fedlm data import stdlib --out runs/stdlib
  fedlm data describe runs/stdlib"""
COMMAND = Group(
    "fedlm data",
    "action",
    "Text of many users, as token stores that training reads.",
    {
        "import": ("make a token store from a source of text", data_import.COMMAND),
        "describe": ("show what is in a token store", data_describe.COMMAND),
        "sample": ("show some clients' examples as text", data_sample.COMMAND),
        "relevance": ("count how often each token occurs, for models with re-attention", data_relevance.COMMAND),
        "export": ("write a token store in the form of another program", data_export.COMMAND),
    },
    _EXAMPLES,
)

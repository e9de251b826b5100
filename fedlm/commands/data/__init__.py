"""`fedlm data`: import text into a token store, describe a store, count its tokens, and export it."""

from fedlm.command_line.command import Group
from fedlm.commands.data import describe, export, importing, relevance, sample

_EXAMPLES = """To begin:

  fedlm data import stdlib --out runs/stdlib
  fedlm data describe runs/stdlib"""
COMMAND = Group(
    "fedlm data",
    "action",
    "Text of many users, as token stores that training reads.",
    {
        "import": ("make a token store from a source of text", importing.COMMAND),
        "describe": ("show what is in a token store", describe.COMMAND),
        "sample": ("show some clients' examples as text", sample.COMMAND),
        "relevance": ("count how often each token occurs, for models with re-attention", relevance.COMMAND),
        "export": ("write a token store in the form of another program", export.COMMAND),
    },
    _EXAMPLES,
)

"""`fedlm laws`: measure scaling laws of private training, fit them, and plan by them."""

from fedlm.command_line.command import Group
from fedlm.commands.laws import figures, fit, importing, plan, report, run, table2

_EXAMPLES = """To begin:

  fedlm data import stdlib --vocabulary-size 512 --out runs/stdlib512
  fedlm laws run --preset small --data runs/stdlib512 --out runs/laws"""
COMMAND = Group(
    "fedlm laws",
    "action",
    "Scaling laws: how to spend a budget of compute, data and privacy best.",
    {
        "run": ("train a grid of models, learning rates and noise, and measure the loss of each", run.COMMAND),
        "import": ("import measurements that were made elsewhere", importing.COMMAND),
        "fit": ("fit laws to measurements, with their errors on measurements that were left out", fit.COMMAND),
        "figures": ("draw pictures of laws", figures.COMMAND),
        "table2": ("list the compute that saturates each budget of people and privacy", table2.COMMAND),
        "report": ("write a page about laws: pictures, coefficients, errors", report.COMMAND),
        "plan": ("find the best model, batch, steps and noise for a budget, by fitted laws", plan.COMMAND),
    },
    _EXAMPLES,
)

"""`fedlm laws`: measure scaling laws of private training, fit them, and plan by them."""

from fedlm.commands import laws_figures, laws_fit, laws_import, laws_plan, laws_report, laws_run, laws_table2
from fedlm.commands.sub_commands import run_choice


def main(argv: list[str]) -> int:
    """Run `fedlm laws`."""
    choices = {
        "run": ("train a grid of models, learning rates and noise, and measure the loss of each", laws_run.main),
        "import": ("take in measurements that were made elsewhere", laws_import.main),
        "fit": ("fit laws to what was measured, with their errors on what they had not seen", laws_fit.main),
        "figures": ("draw pictures of laws", laws_figures.main),
        "table2": ("list the compute that saturates each budget of people and privacy", laws_table2.main),
        "report": ("write a page about laws: pictures, findings, errors", laws_report.main),
        "plan": ("find the best model, batch, steps and noise for a budget, by fitted laws", laws_plan.main),
    }
    purpose = (
        "Scaling laws: which model, batch, steps and noise a budget of compute, data and privacy is best spent on."
    )
    return run_choice(argv, "fedlm laws", "action", purpose, choices, _EXAMPLES)


_EXAMPLES = """To begin:

  fedlm data import stdlib --vocabulary-size 512 --out runs/stdlib512
  fedlm laws run --preset small --data runs/stdlib512 --out runs/laws"""

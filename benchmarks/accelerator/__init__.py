"""Everything that an accelerator can show, measured by one command; `python -m benchmarks.accelerator` runs it.

The runner (`__main__`, `cells`, `records`, `workers`) imports no JAX: measurements run in a worker process, one cell
after another. `rounds`, `shares`, `private_steps`, `noise`, `recurrence`, `parity`, `comparison` and `peaks` each
measure one thing and can be called from anywhere; `goals`, `report` and `plots` read what they recorded.
"""

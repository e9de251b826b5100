"""What a server of several runs is given beside its folder: what makes runs of settings, and its rules."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from fedlm.fl_core.deployment.server.task import Task

Settings = dict[str, Any]


class RunMaker(NamedTuple):
    """What makes runs of settings as `settings_as_json` gives them. Both raise UserError where that cannot be."""

    complete: Callable[[Settings], Settings]  # checks settings, and adds the defaults of those that are not given
    make_task: Callable[[Settings], Task]  # makes of all settings of a run what is trained


class ServerRules(NamedTuple):
    """What holds at a server beside the settings of its runs."""

    wants_approval: bool = False  # somebody else than its submitter has to approve a private run before it is trained
    keys: Path | None = None  # its folder of keys, with the list of revoked clients

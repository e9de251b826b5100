"""What a deployment is compared with: its run as a simulation, with clients in this process."""

import dataclasses

from fedlm.clients.device.local_training import ClientProgram
from fedlm.fl_core.deployment.server.planned_privacy import planned_privacy
from fedlm.fl_core.privacy.private_plan import plan_aggregation
from fedlm.fl_core.randomness import device_key
from fedlm.fl_core.rounds.norm_bounds import BoundedMean
from fedlm.fl_core.runs.driver import Run
from fedlm.fl_core.runs.federated_training import FederatedTraining
from fedlm.fl_core.runs.files.checkpoints import Checkpoints
from fedlm.fl_core.runs.identity import RunIdentity
from fedlm.fl_core.runs.private_releases import PrivacyTerms
from fedlm.fl_core.runs.round_rows import find_divergence
from fedlm.fl_core.runs.run_folder import RunFolder
from tests.clients.in_process import InProcessRunner
from tests.deployment import small_deployment as small


def simulate(settings, sampler, out, model=None, examples_of=small.examples_of, begin_sum=None):
    """The run as a simulation: the same round loop, noise and ledger with clients here."""
    model = model or small.task(settings).model
    program = ClientProgram(model, settings.training.local_training(), settings.training.compressor())
    rules = settings.aggregation_rules()
    if settings.privacy.is_distributed:
        # Clients that add noise round by themselves.
        rules = dataclasses.replace(rules, exact=False)
    runner = InProcessRunner(program, rules, examples_of)
    fresh = settings.optimization().first_state(model.init(device_key(settings.seed, "init")))
    aggregation = terms = None
    with RunFolder(out) as folder:
        if settings.privacy.is_private:
            privacy, planned = planned_privacy(small.task(settings))
            aggregation = plan_aggregation(privacy, planned)
            terms = PrivacyTerms(aggregation.plan, planned.delta, settings.seed)
        run = Run(
            folder,
            RunIdentity("test", {}, {}),
            steps=settings.rounds,
            save_every=1,
            find_divergence=find_divergence,
            privacy=terms,
        )
        # As a deployment does without privacy, where no clip norm is given.
        bounded = settings.training.update_norm_bound != "none" and settings.training.update_clip_norm is None
        averaging = BoundedMean() if bounded else settings.training.averaging()
        training = FederatedTraining(run, settings.optimization(), fresh, aggregation, averaging=averaging)
        rows = []
        run.take(training.rounds(training.simulated(runner, begin_sum), sampler), rows.append)
        return training.server.params, rows[-1]


def final_parameters(out, private):
    with Checkpoints(out / "checkpoints") as checkpoints:
        arrays = checkpoints.restore_arrays(checkpoints.latest_round())
    return (arrays["server"] if private else arrays)["params"]

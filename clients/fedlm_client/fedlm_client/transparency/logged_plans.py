"""What a run tells every device in each round alike, which is what its log has of it."""

from .. import messages_pb2 as messages

_OF_A_ROUND = ("attempt", "round_number", "client_index", "parameters", "seconds")


def plan_of(asked: messages.RoundConfiguration) -> messages.RoundConfiguration:
    """Leave out what differs from round to round, and from device to device."""
    plan = messages.RoundConfiguration()
    plan.CopyFrom(asked)
    for name in _OF_A_ROUND:
        plan.ClearField(name)
    if plan.secure_sum.HasField("noise"):
        plan.secure_sum.noise.ClearField("rotation")
    return plan


def plan_leaf(plan: messages.RoundConfiguration) -> bytes:
    """Make the leaf of what `plan_of` gives."""
    entry = messages.LogEntry(population=plan.population, run=plan.run, plan=plan)
    return entry.SerializeToString(deterministic=True)

"""How many examples property tests try: few in `make test`, more in `make test-long`, many in `make test-thorough`."""

from hypothesis import settings

# How long an example takes says more of what else a machine does than of the code.
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=15)
settings.register_profile("long", deadline=None, derandomize=True, max_examples=200)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile("quick")


def costly(divisor: int) -> settings:
    """For a property whose examples take long: try only one in `divisor` of the profile's number."""
    return settings(max_examples=max(2, settings.default.max_examples // divisor))

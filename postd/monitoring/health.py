"""How a service is at a moment: what its processes tell each other, and what operators are told."""

from msgspec import Struct

from postd.monitoring.tally import Numbers

OK = "ok"


class Report(Struct, frozen=True):
    """How it is.

    Args:
        states: what it needs to serve, and how that is: `OK`, or what is wrong with it.
        numbers: what was counted.
    """

    states: dict[str, str]
    numbers: Numbers

    @property
    def is_ready(self) -> bool:
        """Whether clients should be sent here."""
        return all(state == OK for state in self.states.values())

    @property
    def troubles(self) -> str:
        """What is wrong, in a line; nothing, if all is well."""
        return "; ".join(f"{what}: {state}" for what, state in self.states.items() if state != OK)

"""The health of a server: the states of its dependencies, and its metrics. Workers send both to the parent process."""

from msgspec import Struct

from postd.monitoring.tally import Metrics

OK = "ok"
"""The state of a dependency that works."""


class Health(Struct, frozen=True):
    """The health of a server at one moment.

    Args:
        states: the state of each dependency: `OK`, or the problem.
        metrics: the counts and gauges.
    """

    states: dict[str, str]
    metrics: Metrics

    @property
    def is_ready(self) -> bool:
        """Whether clients should be sent to this server."""
        return not self.problems

    @property
    def problems(self) -> str:
        """The states other than `OK` in one line, empty if there are none."""
        return "; ".join(f"{name}: {state}" for name, state in self.states.items() if state != OK)

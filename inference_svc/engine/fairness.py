"""Fair share by project: who has been served least comes first.

Only projects with work count. One that comes back starts where the least served one is: time spent
away earns nothing, and a debt is not forgotten while others still wait.
"""

from collections import Counter


class FairShare:
    """Tokens computed and generated for each project."""

    def __init__(self) -> None:
        self._served: dict[str, int] = {}
        self._live: Counter[str] = Counter()

    def served(self, project: str) -> int:
        """What a project has had, comparable among those with work."""
        return self._served.get(project, 0)

    def enter(self, project: str) -> None:
        """A project has one more sequence."""
        if not self._live[project]:
            self._served[project] = max(self.served(project), self._least())
        self._live[project] += 1

    def leave(self, project: str) -> None:
        """A project has one sequence less; what no longer matters is forgotten."""
        self._live[project] -= 1
        if self._live[project]:
            return
        del self._live[project]
        least = self._least()
        self._served = {
            name: served
            for name, served in self._served.items()
            if self._live[name] or (self._live and served > least)
        }

    def charge(self, project: str, tokens: int) -> None:
        """Tokens were spent on a project."""
        self._served[project] = self.served(project) + tokens

    def _least(self) -> int:
        return min((self.served(name) for name, count in self._live.items() if count), default=0)

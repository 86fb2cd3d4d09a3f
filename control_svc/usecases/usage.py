"""Usage: reports of services are added up, operators read the sums."""

from control_svc.domain.listing import Page, PageRequest, PageTokens
from control_svc.domain.ports import Clock
from control_svc.domain.usage import UsageQuery, UsageReport, UsageSum
from control_svc.storage.repositories.usage import SqlUsage
from control_svc.storage.unit_of_work import Transactions

MAX_PAGE = 1000


class Usage:
    """What services report, and what operators ask."""

    def __init__(self, transactions: Transactions, tokens: PageTokens, clock: Clock) -> None:
        self._transactions = transactions
        self._tokens = tokens
        self._clock = clock

    async def add(self, report: UsageReport) -> None:
        """Add a report, once however often it comes.

        Raises MissingField, TooLong, InvalidField or OutOfRange.
        """
        now = self._clock()
        report.check(now)
        await self._transactions.write(lambda tx: SqlUsage(tx).add(report, now))

    async def page(self, query: UsageQuery, asked: PageRequest) -> Page[UsageSum]:
        """A page of sums, oldest first. Raises TooLong, InvalidField or OutOfRange."""
        query.check()
        binding = ("usage", str(query))
        window = self._tokens.window(asked, binding, MAX_PAGE)
        found = await self._transactions.read(
            lambda tx: SqlUsage(tx).page(query, window.after, window.limit)
        )
        return self._tokens.page(found, window, asked, binding)

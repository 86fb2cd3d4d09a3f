"""Counts rows: what is left behind, and what is not."""

from sqlalchemy import func, select

from control_svc.db.engine import Database
from control_svc.db.tables import Table


async def count_rows(database: Database, table: type[Table]) -> int:
    """How many rows a table has, over all projects."""
    async with database.writer.connect() as connection:
        found = await connection.execute(select(func.count()).select_from(table))
        return found.scalar_one()

"""Counts rows."""

import sqlalchemy as sa

from control_svc.db.engine import Database
from control_svc.db.tables import Table


async def count_rows(database: Database, table: type[Table]) -> int:
    async with database.writer.connect() as connection:
        result = await connection.execute(sa.select(sa.func.count()).select_from(table))
        return result.scalar_one()

"""The tables of what all control processes of an installation share."""

from sqlalchemy import BigInteger, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from control_svc.storage.models.base import Table


class CounterRow(Table):
    """Numbers that only grow, for all control processes."""

    __tablename__ = "counters"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[int] = mapped_column(BigInteger)


class SecretRow(Table):
    """Secrets that all control processes of an installation share."""

    __tablename__ = "secrets"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[bytes] = mapped_column(LargeBinary)

"""What a certificate is about, for its readers: by the word of the writer, who need not say it."""

from __future__ import annotations

import datetime
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, final

from tightrope.errors import InvalidInput
from tightrope.evidence.form import faults, schema_of
from tightrope.evidence.strict_json import check_plain, read_json

__all__ = ["Title"]


@final
@dataclass(frozen=True)
class Title:
    """None is not published. date: YYYY-MM-DD. people: how many the data are about."""

    organisation: str | None = None
    model: str | None = None
    data_set: str | None = None
    date: str | None = None
    people: int | None = None

    def __post_init__(self) -> None:
        wrong = list(
            faults(asdict(self), schema_of("tightrope.certificate/2")["properties"]["title"])
        )
        if wrong:
            raise InvalidInput(f"This title cannot be written in a certificate. {wrong[0]}.")
        check_plain(asdict(self))
        try:
            datetime.date.fromisoformat(self.date or "2000-01-01")
        except ValueError as error:
            raise InvalidInput(f"The date {self.date} is none: {error}.") from None

    @staticmethod
    def read(path: str | Path) -> Title:
        """From a JSON file with some of the fields."""
        data, known = read_json(Path(path)), [field.name for field in fields(Title)]
        if not isinstance(data, dict) or not set(data) <= set(known):
            raise InvalidInput(f"A title is a JSON object with some of {', '.join(known)}.")
        return Title(**data)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

"""Private models from raw tables: a schema of what is public, one budget, any size."""

try:
    import sklearn as _sklearn  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "tightrope.tables needs scikit-learn: pip install 'tightrope[tables]'",
        name=missing.name,
    ) from missing

from tightrope.tables.pipeline import PrivatePipeline
from tightrope.tables.schema import Category, Date, Flag, Ignored, Number, TableSchema
from tightrope.tables.transformers import (
    PrivateImputer,
    PrivateOneHotEncoder,
    PrivateScaler,
    PrivateStandardScaler,
    account_of,
    certificate_of,
    share_budget,
)

__all__ = ["TableSchema", "Number", "Category", "Flag", "Date", "Ignored", "PrivatePipeline"]
__all__ += ["PrivateScaler", "PrivateStandardScaler", "PrivateOneHotEncoder", "PrivateImputer"]
__all__ += ["account_of", "certificate_of", "share_budget"]

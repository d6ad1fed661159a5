"""The trainings behind the tables: recipes, one training function, results as JSON.

Recipes and results need NumPy only; training needs PyTorch (learn.py, tasks.py, models.py).
"""

from tightrope_reproduce.learning.recipe import Recipe
from tightrope_reproduce.learning.result import Result, Store, Summary

__all__ = ["Recipe", "Result", "Store", "Summary"]

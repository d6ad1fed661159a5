"""Loaders for the datasets of the papers and examples. NumPy only; nothing is downloaded."""

from tightrope.data.adult import load_adult
from tightrope.data.cifar10 import load_cifar10, unpack_cifar10
from tightrope.data.folder import Dataset, Split, find_folder
from tightrope.data.imdb import ImdbTexts, encode_imdb, load_imdb, load_imdb_texts
from tightrope.data.mnist import load_fashion_mnist, load_mnist
from tightrope.data.movielens import MovieLens, load_movielens
from tightrope.data.tabular import TABLES, Table, load_table

__all__ = [
    "Dataset",
    "Split",
    "find_folder",
    "load_mnist",
    "load_fashion_mnist",
    "load_cifar10",
    "unpack_cifar10",
    "load_adult",
    "load_imdb",
    "load_imdb_texts",
    "encode_imdb",
    "ImdbTexts",
    "load_movielens",
    "MovieLens",
    "load_table",
    "Table",
    "TABLES",
]

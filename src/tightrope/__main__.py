"""`python -m tightrope` is the `tightrope` command."""

from tightrope.cli import main

if __name__ == "__main__":
    main()

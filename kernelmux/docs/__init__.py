"""Pages that are written from the specs and the records, and the program that writes them; the others are typed."""

from pathlib import Path

TOP = Path(__file__).resolve().parents[2]  # of the checkout
HOME = TOP / "docs"
RECORDS = TOP / "kernelmux/records"  # of each GPU a folder; trials/ in it has what pages quote of single runs

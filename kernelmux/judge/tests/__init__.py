"""Tests of the judge: verdicts, attacks, tasks of other projects."""

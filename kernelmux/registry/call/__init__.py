"""Running a call: `dispatch`, and what is remembered, replayed, bound or captured of calls like it."""

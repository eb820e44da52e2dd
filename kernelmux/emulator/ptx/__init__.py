"""Parses PTX: functions, instructions, operands, types."""

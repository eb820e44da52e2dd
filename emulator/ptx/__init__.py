"""PTX as text and as what the text says: functions, instructions, operands, types."""

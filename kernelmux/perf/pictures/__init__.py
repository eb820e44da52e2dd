"""What matplotlib draws: charts, rooflines and curves, in the colours of `themes`, light and dark."""

"""Features to codes, codes to values, values to predictions."""

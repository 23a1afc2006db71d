"""Plans: which offsets share a batch or a round, decided before any of their records is read."""

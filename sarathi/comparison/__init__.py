"""Runs beside each other: what is read of each, the statistics, and the texts, table and page that show them."""

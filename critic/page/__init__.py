"""Benchmark reports: sections of tables and pictures, as text and as one HTML page that needs no network."""

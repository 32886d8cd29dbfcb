"""Measure a sample: each module takes a sample and returns findings."""

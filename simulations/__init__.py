"""Simulated cross-device training: federated data sets, the cohort engine, experiments and their reports."""

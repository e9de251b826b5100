"""The plots of reports."""

"""Reports of comparisons: tables, plots and one self-contained HTML page."""

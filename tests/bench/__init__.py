"""`python -m tests.bench`: how fast the site is, as ratios to a floor that is measured in the same run."""

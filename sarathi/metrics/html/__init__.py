"""HTML pages from runs: report.html of one run, and the pieces that a page comparing several is made of."""

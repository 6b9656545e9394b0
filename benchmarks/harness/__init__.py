"""What the paper's tables share: cases and how they run on a backend, statistics over seeds, and reports."""

"""Speed and memory, measured against named peers in the same run; results are one JSON."""

"""The other ways to compute the same, each with its best settings, one file each."""
